use test_support::assert_refused;

use super::*;
use crate::mutated;
use crate::user_error::UserError;

/// Nothing is named.
pub(in crate::sources::webdataset) const FIELDS: NamedFields<'static> =
    NamedFields { image: None, label: None, json_key: "label" };

/// A tar file of these files.
pub(in crate::sources::webdataset) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *contents).unwrap();
    }
    archive.into_inner().unwrap()
}

fn read_bytes(bytes: &[u8], asked: NamedFields<'_>) -> Result<TarShard, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.tar");
    crate::files::write_atomic(&path, bytes).unwrap();
    TarShard::read(&path, asked)
}

fn read(files: &[(&str, &[u8])]) -> Result<TarShard, Error> {
    read_bytes(&tar(files), FIELDS)
}

fn keys(shard: &TarShard) -> Vec<&str> {
    (0..shard.len()).map(|place| shard.key(place)).collect()
}

#[test]
fn files_are_grouped_by_their_keys_wherever_they_lie() {
    let long = format!("{}/0009", "folder".repeat(40));
    let files: [(&str, &[u8]); 11] = [
        ("./README", b"about"),
        ("__main__.json", b"{}"),
        ("b/0007.jpg", b"seven"),
        ("b/0008.PNG", b"eight8"),
        ("b/._0007.jpg", b"fork"),
        ("b/0007.cls", b"12\n"),
        ("b/0007.caption.txt", b"a cat"),
        ("b/0008.cls", b"3"),
        ("notes.md", b"text"),
        (&format!("{long}.jpeg"), b"nine"),
        (&format!("{long}.cls"), b"0"),
    ];
    let bytes = tar(&files);
    let shard = read_bytes(&bytes, FIELDS).unwrap();
    assert_eq!(keys(&shard), ["b/0007", "b/0008", &long]);
    assert_eq!(shard.labels, ClassLabels::Numbers(vec![12, 3, 0]));
    assert_eq!((&*shard.label_field, shard.left_out), ("cls", 4));
    let images = (0..3).map(|place| {
        let (start, length) = shard.image(place);
        std::str::from_utf8(&bytes[start as usize..][..length]).unwrap()
    });
    assert_eq!(images.collect::<Vec<_>>(), ["seven", "eight8", "nine"]);
}

#[test]
fn labels_are_found_in_the_usual_fields_or_in_those_that_are_named() {
    let words = |files: &[(&str, &[u8])], asked| {
        let shard = read_bytes(&tar(files), asked).unwrap();
        (shard.label_field.clone(), shard.labels)
    };
    let word = |word: &str| ClassLabels::Words(vec![word.to_owned()]);
    let number = |number| ClassLabels::Numbers(vec![number]);
    let all: [(&str, &[u8]); 5] = [
        ("a.txt", b" tabby cat \n"),
        ("a.json", br#"{"label": 3, "name": "cat", "width": 1.5, "bad": NaN}"#),
        ("a.jpg", b"x"),
        ("a.cls", b"5"),
        ("a.breed.txt", b"tabby"),
    ];
    assert_eq!(words(&all, FIELDS), ("cls".to_owned(), number(5)));
    assert_eq!(words(&all[..3], FIELDS), ("json".to_owned(), number(3)));
    let text = NamedFields { label: Some("TXT"), ..FIELDS };
    assert_eq!(words(&all, text), ("txt".to_owned(), word("tabby cat")));
    let breed = NamedFields { label: Some("breed.txt"), ..FIELDS };
    assert_eq!(words(&all, breed), ("breed.txt".to_owned(), word("tabby")));
    let name = NamedFields { label: Some("json"), json_key: "name", ..FIELDS };
    assert_eq!(words(&all, name), ("json".to_owned(), word("cat")));
    let width = NamedFields { json_key: "width", ..name };
    let refused = read_bytes(&tar(&all), width);
    assert_refused(refused, "`a.json` has `width` = 1.5, which is no class");
    let absent = read_bytes(&tar(&all), NamedFields { json_key: "class", ..name }).unwrap_err();
    let keys = "`a.json` has no key `class`; its keys are";
    assert_refused(Err::<(), _>(&absent), keys);
    assert!(absent.help().unwrap().contains("data.label_key"));
    // The label of another field is not looked at.
    let fine: [(&str, &[u8]); 3] = [("a.json", b"no JSON"), ("a.jpg", b"x"), ("a.cls", b"1")];
    assert_eq!(words(&fine, FIELDS).1, number(1));
}

#[test]
fn samples_that_cannot_be_used_are_refused_by_their_keys() {
    let refuse = |files: &[(&str, &[u8])], what: &str, help: &str| {
        let error = read(files).unwrap_err();
        assert!(error.to_string().contains("0.tar`"), "{error}");
        assert_refused(Err::<(), _>(&error), what);
        assert!(error.help().unwrap().contains(help), "{:?}", error.help());
    };
    let (a, cls): ((&str, &[u8]), (&str, &[u8])) = (("a.jpg", b"x"), ("a.cls", b"1"));
    refuse(&[a, cls, ("b.jpg", b"y")], "sample `b` has no label; its fields are `jpg`", "`cls`");
    refuse(&[a, cls, ("b.cls", b"1")], "sample `b` has no image; its fields are `cls`", "image");
    refuse(&[a, cls, ("b.jpg", b"y"), a], "it has `a.jpg` twice", "a key of its own");
    refuse(&[a, cls, cls], "it has `a.cls` twice", "a key of its own");
    refuse(
        &[a, cls, ("b.jpg", b"y"), ("b.txt", b"cat")],
        "sample `b` has its label in `txt`, others in `cls`",
        "data.label_field",
    );
    refuse(&[a, ("a.cls", b"")], "`a.cls` is empty", "data.label_field");
    refuse(&[a, ("a.txt", b"two\nlines")], "`a.txt` has several lines", "data.label_field");
    refuse(&[a, ("a.cls", b"\xff")], "`a.cls` is not UTF-8", "data.label_field");
    refuse(&[a, ("a.txt", &[b'x'; 5000])], "`a.txt` has 5000 bytes, too many for a class", "word");
    refuse(&[a, ("a.json", b"[1]")], "`a.json` is not a JSON object", "data.label_field");
    refuse(&[("README.md", b"x")], "it has no samples", "`0007.jpg` and `0007.cls`");
    refuse(&[], "it has no samples", "`0007.jpg` and `0007.cls`");
    let named = NamedFields { image: Some("webp"), ..FIELDS };
    let fields = "it has no samples; its fields are `jpg`, `cls`";
    assert_refused(read_bytes(&tar(&[a, cls]), named), fields);
    let named = NamedFields { label: Some("class"), ..FIELDS };
    let fields = "sample `a` has no label `class`; its fields are `jpg`, `cls`";
    assert_refused(read_bytes(&tar(&[a, cls]), named), fields);
    let two = read(&[a, ("a.seg.png", b"y"), cls]).unwrap_err();
    let fields = "sample `a` of `";
    assert_refused(Err::<(), _>(&two), fields);
    assert_refused(Err::<(), _>(&two), "has several images: `jpg`, `seg.png`");
    assert_eq!(two.key(), Some("data.image_field"));
    let named = NamedFields { image: Some("seg.png"), ..FIELDS };
    let shard = read_bytes(&tar(&[a, ("a.seg.png", b"yy"), cls]), named).unwrap();
    assert_eq!(shard.image(0).1, 2);
}

#[test]
fn a_file_that_is_no_whole_tar_file_is_refused_with_what_it_is() {
    let whole = tar(&[("a.jpg", &[7; 600]), ("a.cls", b"1"), ("b.jpg", b"x"), ("b.cls", b"0")]);
    // Two blocks of a header and its contents more for the first image, two blocks of zeros.
    assert_eq!(whole.len(), 512 * 11);
    for length in 1..whole.len() {
        let refused = read_bytes(&whole[..length], FIELDS).map(|shard| shard.len());
        // One block of zeros tells that nothing is missing.
        if length >= 512 * 10 {
            assert_eq!(refused.unwrap(), 2, "{length}");
        } else {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains("0.tar`: it "), "{length}: {error}");
            assert!(error.help().unwrap().starts_with("copy or fetch it again"), "{length}");
        }
    }
    assert_refused(read_bytes(&whole[..1000], FIELDS), "it ends within `a.jpg`");
    assert_refused(read_bytes(&whole[..512 * 9], FIELDS), "without the mark of an archive's end");
    let twice = read_bytes(&[&whole[..], &whole].concat(), FIELDS).unwrap_err();
    assert_refused(Err::<(), _>(&twice), "it goes on after the end of its archive");
    assert!(twice.help().unwrap().contains("tar --concatenate"));
    // GNU tar fills its last record up with zeros.
    assert_eq!(read_bytes(&[&whole[..], &[0; 8192]].concat(), FIELDS).unwrap().len(), 2);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &whole).unwrap();
    let packed = read_bytes(&packed.finish().unwrap(), FIELDS).unwrap_err();
    assert_refused(Err::<(), _>(&packed), "0.tar`: it is packed by gzip");
    assert!(packed.help().unwrap().contains("`gunzip --keep FILE` unpacks it"));
    assert_refused(read_bytes(b"PK\x03\x04 and more", FIELDS), "it is a zip archive");
    let parquet = read_bytes(b"PAR1 and more", FIELDS).unwrap_err();
    assert!(parquet.help().unwrap().contains("hf_dataset"));
    assert_refused(read_bytes(b"", FIELDS), "is empty");
    assert_refused(read_bytes(&[b'x'; 2048], FIELDS), "it is no whole tar file");
}

#[test]
fn a_damaged_shard_is_read_or_refused_with_its_name() {
    let files: [(&str, &[u8]); 4] = [
        ("a.jpg", &[7; 600]),
        ("a.json", br#"{"label": 1}"#),
        ("b.jpg", b"x"),
        ("b.json", br#"{"label": 0}"#),
    ];
    let long = "x".repeat(300);
    let names = [format!("{long}.jpg"), format!("{long}.cls")];
    let seeds = [tar(&files), tar(&[(&names[0], b"y"), (&names[1], b"0")])];
    let (mut whole, mut refused) = (0, 0);
    for bytes in mutated::inputs(&seeds, 1500, 71) {
        match read_bytes(&bytes, FIELDS) {
            Ok(shard) => {
                whole += 1;
                for place in 0..shard.len() {
                    let (start, length) = shard.image(place);
                    assert!(start + length as u64 <= bytes.len() as u64);
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("0.tar`"), "{error}");
            }
        }
    }
    assert!(refused > 300, "{whole} whole, {refused} refused");
}
