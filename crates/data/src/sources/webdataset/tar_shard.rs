//! A tar shard -> its samples: where the image of each lies, and its class.
//!
//! As in the library `webdataset`, the files of a sample have one name up to its first dot, the key,
//! and what follows is the field: `0007.jpg` and `0007.cls` are fields of the sample `0007`. They
//! need not follow each other. Headers and labels are read, and no image.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tar::{Archive, Entry};

use crate::error::{Error, named};
use crate::file_names::{is_hidden, is_image};
use crate::packed::{GZIP, ZSTD};
use crate::sources::class_labels::ClassLabels;
use crate::{json, read};

/// Contents of a shard, as messages call them.
pub(super) const EXPECTED: &str = "a tar file of images and their classes";
/// Fields of labels, where none is named: the first of them that a sample has.
const LABEL_FIELDS: [&str; 3] = ["cls", "json", "txt"];
/// Largest image.
const MAX_IMAGE: u64 = 1 << 30;
/// Largest label as text, and as JSON.
const MAX_TEXT: u64 = 4096;
const MAX_JSON: u64 = 1 << 20;
/// Bytes of a header, and of the units that contents fill up.
const BLOCK: u64 = 512;
/// Bytes after the end of an archive that are looked at for another one.
const MAX_AFTER: u64 = 64 << 10;

/// Fields that the experiment names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NamedFields<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) label: Option<&'a str>,
    /// Key of the label in a field of JSON.
    pub(super) json_key: &'a str,
}

/// The samples of a shard, in the order of their first entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TarShard {
    /// The keys of all samples, and where each ends.
    keys: String,
    key_ends: Vec<usize>,
    /// Where the image of each lies, and its length.
    starts: Vec<u64>,
    lengths: Vec<u32>,
    /// The class of each.
    pub(super) labels: ClassLabels,
    /// The field of the labels.
    pub(super) label_field: String,
    /// Entries that are no sample's.
    pub(super) left_out: u64,
}

/// A sample as it is put together.
#[derive(Default)]
struct Sample {
    key: String,
    /// Fields by their number.
    fields: Vec<u16>,
    image: Option<(u16, u64, u64)>,
    label: Option<Label>,
}

struct Label {
    field: u16,
    /// Smaller is better.
    rank: usize,
    /// Its text, or what is wrong with it, and a remedy.
    text: Result<String, (String, &'static str)>,
}

impl TarShard {
    pub(super) fn len(&self) -> usize {
        self.key_ends.len()
    }

    pub(super) fn key(&self, place: usize) -> &str {
        let end = |place: usize| self.key_ends[place];
        let start = place.checked_sub(1).map_or(0, end);
        self.keys.get(start..end(place)).unwrap_or_default()
    }

    /// Where the image of a sample lies in the file, and its length.
    pub(super) fn image(&self, place: usize) -> (u64, usize) {
        (self.starts[place], self.lengths[place] as usize)
    }

    /// True if all lists are as long as each other.
    pub(super) fn is_whole(&self) -> bool {
        let n = self.len();
        n == self.starts.len() && n == self.lengths.len() && n == self.labels.len()
    }

    /// Reads the headers and labels of the shard at `path`.
    ///
    /// # Errors
    ///
    /// It is no tar file, or cut short; or a sample lacks its image or label, or has two.
    pub(super) fn read(path: &Path, asked: NamedFields<'_>) -> Result<Self, Error> {
        let (file, bytes) = read::open_sized(path, "the shard", EXPECTED)?;
        refuse_other_form(path, &file, bytes)?;
        let mut reading = Reading::new(path, asked);
        let end = reading.entries(&file, bytes)?;
        reading.check_end(&file, end, bytes)?;
        reading.finish()
    }
}

/// Reading of a shard.
struct Reading<'a> {
    path: &'a Path,
    asked: NamedFields<'a>,
    samples: Vec<Sample>,
    by_key: HashMap<String, usize>,
    /// Names of the fields.
    fields: Vec<String>,
    left_out: u64,
}

impl<'a> Reading<'a> {
    fn new(path: &'a Path, asked: NamedFields<'a>) -> Self {
        let (samples, fields) = (Vec::new(), Vec::new());
        Self { path, asked, samples, fields, by_key: HashMap::new(), left_out: 0 }
    }

    fn refuse(&self, what: String, help: &str) -> Error {
        Error::WithHelp { path: self.path.to_owned(), what, help: help.to_owned() }
    }

    fn cut_short(&self, what: String) -> Error {
        self.refuse(what, "copy or fetch it again: it may be cut short, or was never finished")
    }

    /// Collects the samples of all entries, and returns where the last one ends.
    fn entries(&mut self, file: &File, bytes: u64) -> Result<u64, Error> {
        let mut archive = Archive::new(file);
        let broken = |error: std::io::Error| {
            let what = format!("it is no whole tar file: {error}");
            Error::WithHelp { path: self.path.to_owned(), what, help: BROKEN.to_owned() }
        };
        let entries = archive.entries_with_seek().map_err(broken)?;
        let mut last_end = 0;
        for entry in entries {
            let broken = |error: std::io::Error| {
                let what = format!("it is no whole tar file after byte {last_end}: {error}");
                Error::WithHelp { path: self.path.to_owned(), what, help: BROKEN.to_owned() }
            };
            let mut entry = entry.map_err(broken)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let end = entry.raw_file_position().checked_add(entry.size());
            let end = end.and_then(|end| end.checked_next_multiple_of(BLOCK));
            let Some(end) = end.filter(|end| *end <= bytes) else {
                return Err(self.cut_short(format!("it ends within `{name}`")));
            };
            last_end = end;
            let kind = entry.header().entry_type();
            if kind.is_gnu_sparse() {
                let what = format!("`{name}` is a sparse file");
                return Err(self.refuse(what, "write the shard without `--sparse`"));
            }
            match split_name(&name).filter(|_| kind.is_file() || kind.is_contiguous()) {
                Some((key, field)) => self.add(key, &field, &mut entry)?,
                None => self.left_out += u64::from(!kind.is_dir()),
            }
        }
        Ok(last_end)
    }

    /// Adds an entry to its sample.
    fn add(&mut self, key: &str, field: &str, entry: &mut Entry<'_, &File>) -> Result<(), Error> {
        let is_same = self.samples.last().is_some_and(|sample| sample.key == key);
        let known =
            if is_same { Some(self.samples.len() - 1) } else { self.by_key.get(key).copied() };
        let place = known.unwrap_or_else(|| {
            self.by_key.insert(key.to_owned(), self.samples.len());
            self.samples.push(Sample { key: key.to_owned(), ..Sample::default() });
            self.samples.len() - 1
        });
        let number = self.number_of(field)?;
        if self.samples[place].fields.contains(&number) {
            let what = format!("it has `{key}.{field}` twice");
            return Err(self.refuse(what, "give each sample of a shard a key of its own"));
        }
        self.samples[place].fields.push(number);
        let is_image = match self.asked.image {
            Some(wanted) => wanted.eq_ignore_ascii_case(field),
            None => is_image(format!(".{field}").as_ref()),
        };
        let rank = match self.asked.label {
            Some(wanted) => wanted.eq_ignore_ascii_case(field).then_some(0),
            None => LABEL_FIELDS.iter().position(|usual| *usual == field),
        };
        if is_image {
            if let Some((other, ..)) = self.samples[place].image {
                let other = self.fields[usize::from(other)].clone();
                let (path, sample) = (self.path.to_owned(), key.to_owned());
                let fields = vec![other, field.to_owned()];
                return Err(Error::ManyFields { path, sample, fields });
            }
            if entry.size() > MAX_IMAGE {
                let what = format!("`{key}.{field}` has {} bytes", entry.size());
                return Err(self.refuse(what, "leave out images of more than 1 GiB"));
            }
            self.samples[place].image = Some((number, entry.raw_file_position(), entry.size()));
        } else if let Some(rank) = rank
            && self.samples[place].label.as_ref().is_none_or(|label| rank < label.rank)
        {
            let text = self.label(field, entry)?;
            self.samples[place].label = Some(Label { field: number, rank, text });
        }
        Ok(())
    }

    fn number_of(&mut self, field: &str) -> Result<u16, Error> {
        if let Some(known) = self.fields.iter().position(|known| known == field) {
            return Ok(known as u16);
        }
        let number = u16::try_from(self.fields.len()).map_err(|_| {
            let what = "its files have more than 65,536 different endings".to_owned();
            self.refuse(what, "name the files of a sample `KEY.FIELD`, with a key without dots")
        })?;
        self.fields.push(field.to_owned());
        Ok(number)
    }

    /// The text of a label; or what is wrong with it, which counts if it is the sample's.
    fn label(
        &self,
        field: &str,
        entry: &mut Entry<'_, &File>,
    ) -> Result<Result<String, (String, &'static str)>, Error> {
        let is_json = field.rsplit('.').next() == Some("json");
        let most = if is_json { MAX_JSON } else { MAX_TEXT };
        if entry.size() > most {
            let what = format!("has {} bytes, too many for a class", entry.size());
            return Ok(Err((what, NAME_LABEL)));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|source| Error::Io {
            action: "read",
            path: self.path.to_owned(),
            source,
        })?;
        Ok(if is_json { self.json_label(&bytes) } else { text_label(&bytes) })
    }

    /// The class in an object of JSON.
    fn json_label(&self, bytes: &[u8]) -> Result<String, (String, &'static str)> {
        let key = self.asked.json_key;
        let object = json::object(bytes)
            .map_err(|error| (error.what.trim_start_matches("it ").to_owned(), NAME_LABEL))?;
        match object.get(key) {
            Some(Value::String(word)) if !word.trim().is_empty() => Ok(word.trim().to_owned()),
            Some(Value::Number(number)) if number.is_i64() => Ok(number.to_string()),
            Some(Value::Bool(is_so)) => Ok(is_so.to_string()),
            Some(other) => Err((format!("has `{key}` = {other}, which is no class"), NAME_LABEL)),
            None => {
                let keys: Vec<String> = object.keys().cloned().collect();
                Err((format!("has no key `{key}`; its keys are {}", named(&keys)), NAME_KEY))
            }
        }
    }

    /// Refuses a file that ends without the mark of an archive's end, or goes on after it. Only the
    /// mark tells a whole shard from one that is cut between two entries.
    fn check_end(&self, file: &File, end: u64, bytes: u64) -> Result<(), Error> {
        if bytes < end + BLOCK {
            let what = "it ends without the mark of an archive's end".to_owned();
            return Err(self.cut_short(what));
        }
        let mut after = vec![0; (bytes - end).min(MAX_AFTER) as usize];
        let failed = |source| Error::Io { action: "read", path: self.path.to_owned(), source };
        file.read_exact_at(&mut after, end).map_err(failed)?;
        if after.iter().any(|&byte| byte != 0) {
            let what = "it goes on after the end of its archive".to_owned();
            let help = "join archives by `tar --concatenate`, not by `cat`; or keep them apart";
            return Err(self.refuse(what, help));
        }
        Ok(())
    }

    /// The shard, if each sample has an image and a label.
    fn finish(self) -> Result<TarShard, Error> {
        let mut shard = TarShard { left_out: self.left_out, ..TarShard::default() };
        let is_labelled = |sample: &&Sample| sample.image.is_some() && sample.label.is_some();
        let first = self.samples.iter().find(is_labelled).and_then(|first| first.label.as_ref());
        let label_field = first.map(|label| label.field);
        let mut words = Vec::new();
        for sample in &self.samples {
            let key = &sample.key;
            let Some((_, start, length)) = sample.image else {
                if label_field.is_some_and(|field| sample.fields.contains(&field)) {
                    let what = format!("sample `{key}` has no image; {}", self.fields_of(sample));
                    return Err(self.refuse(what, NO_IMAGE));
                }
                shard.left_out += sample.fields.len() as u64;
                continue;
            };
            let Some(label) = &sample.label else {
                let wanted =
                    self.asked.label.map(|field| format!(" `{field}`")).unwrap_or_default();
                let what =
                    format!("sample `{key}` has no label{wanted}; {}", self.fields_of(sample));
                return Err(self.refuse(what, NO_LABEL));
            };
            if let Some(field) = label_field.filter(|field| *field != label.field) {
                let [own, others] = [label.field, field].map(|field| self.name(field));
                let what = format!("sample `{key}` has its label in `{own}`, others in `{others}`");
                return Err(self.refuse(what, NO_LABEL));
            }
            let word = label.text.as_ref().map_err(|(what, help)| {
                self.refuse(format!("`{key}.{}` {what}", self.name(label.field)), help)
            })?;
            words.push(word.clone());
            shard.keys.push_str(key);
            shard.key_ends.push(shard.keys.len());
            shard.starts.push(start);
            shard.lengths.push(length as u32);
        }
        if words.is_empty() {
            let what = match self.fields.as_slice() {
                [] => "it has no samples".to_owned(),
                fields => format!("it has no samples; its fields are {}", named(fields)),
            };
            return Err(self.refuse(what, NO_SAMPLES));
        }
        shard.labels = ClassLabels::of_words(words);
        shard.label_field =
            label_field.map(|field| self.name(field).to_owned()).unwrap_or_default();
        Ok(shard)
    }

    fn name(&self, field: u16) -> &str {
        &self.fields[usize::from(field)]
    }

    fn fields_of(&self, sample: &Sample) -> String {
        let names: Vec<String> =
            sample.fields.iter().map(|&field| self.name(field).to_owned()).collect();
        format!("its fields are {}", named(&names))
    }
}

const BROKEN: &str = "copy or fetch it again, or write it anew";
const NAME_LABEL: &str = "write the class as a whole number or a word, or name the field that has \
                          it with `data.label_field`";
const NAME_KEY: &str = "name the key of the class with `data.label_key`, or another field with \
                        `data.label_field`";
const NO_IMAGE: &str = "add its image, leave it out of the shard, or name the field of images with \
                        `data.image_field`";
const NO_LABEL: &str = "write its class into a field `cls` of all samples, name the field that has \
                        it with `data.label_field`, or leave it out of the shard";
const NO_SAMPLES: &str = "name the files of a sample by one key, as in `0007.jpg` and `0007.cls`, or \
                          name the fields with `data.image_field` and `data.label_field`";

/// The class in a text of one line.
fn text_label(bytes: &[u8]) -> Result<String, (String, &'static str)> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(("is not UTF-8".to_owned(), NAME_LABEL));
    };
    match text.trim() {
        "" => Err(("is empty".to_owned(), NAME_LABEL)),
        text if text.contains('\n') => Err(("has several lines".to_owned(), NAME_LABEL)),
        text => Ok(text.to_owned()),
    }
}

/// The key and the field of an entry; `None` if it is no sample's: hidden, or without an ending.
fn split_name(name: &str) -> Option<(&str, String)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    if name.split('/').any(|part| is_hidden(part.as_ref())) {
        return None;
    }
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    // `__main__.json` and the like describe the shard.
    let is_own = key[base..].starts_with("__") && key[base..].ends_with("__");
    (!is_own && !field.is_empty()).then(|| (key, field.to_ascii_lowercase()))
}

/// Refuses a file that is packed, or something else.
fn refuse_other_form(path: &Path, file: &File, bytes: u64) -> Result<(), Error> {
    const FORMS: [(&[u8], &str, &str); 6] = [
        (GZIP, "it is packed by gzip", "gunzip --keep"),
        (ZSTD, "it is packed by zstd", "zstd --decompress"),
        (b"BZh", "it is packed by bzip2", "bunzip2 --keep"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "it is packed by xz", "unxz --keep"),
        (b"PK\x03\x04", "it is a zip archive, not a tar file", ""),
        (b"PAR1", "it is a parquet file", ""),
    ];
    if bytes == 0 {
        return Err(Error::Empty { path: path.to_owned(), expected: EXPECTED });
    }
    let mut first = vec![0; bytes.min(8) as usize];
    let failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
    file.read_exact_at(&mut first, 0).map_err(failed)?;
    let Some((_, what, command)) = FORMS.iter().find(|(magic, ..)| first.starts_with(magic)) else {
        return Ok(());
    };
    let help = match *command {
        "" if first.starts_with(b"PAR1") => "`data.name = \"hf_dataset\"` reads it".to_owned(),
        "" => "write its files into a tar file".to_owned(),
        command => format!(
            "samples are read where they lie, which a packed file does not allow: `{command} FILE` \
             unpacks it, and takes hardly more space, since images are compressed themselves"
        ),
    };
    Err(Error::WithHelp { path: path.to_owned(), what: (*what).to_owned(), help })
}

#[cfg(test)]
pub(super) mod tests;
