//! Well-known data sets: where their files are, and what they must be.
//!
//! A set is known by the end of the path at which an experiment expects it, such as
//! `data/mnist` or `ETTh1.csv`; one that is unpacked from archives also by a path inside it.

use std::path::{Path, PathBuf};

use crate::archive::Layout;

/// A file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// Name of the file.
    pub name: &'static str,
    /// Folders on the web that have it, the first one that answers is taken.
    pub(crate) mirrors: &'static [&'static str],
    /// SHA-256 of its content in hexadecimal.
    pub(crate) sha256: &'static str,
}

/// A file, or a folder of files.
#[derive(Clone, Copy, Debug)]
pub struct KnownSet {
    /// End of the path of the file or folder.
    pub path: &'static str,
    pub(crate) form: Form,
    pub(crate) files: &'static [KnownFile],
}

/// The relation between a set's path and its files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// The path is the only file.
    File,
    /// The path is a folder of the files.
    Folder,
    /// The path is a folder that is made from the files, which are archives beside it.
    Unpacked(Layout),
}

const fn file(
    name: &'static str,
    mirrors: &'static [&'static str],
    sha256: &'static str,
) -> KnownFile {
    KnownFile { name, mirrors, sha256 }
}

const MNIST: &[&str] = &[
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
];
const FASHION: &[&str] =
    &["https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"];
const ETT: &[&str] = &["https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"];
const CHAR_RNN: &[&str] =
    &["https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"];
const ALPACA: &[&str] = &[
    "https://raw.githubusercontent.com/tatsu-lab/stanford_alpaca/761dc5bfbdeeffa89b8bff5d038781a4055f796a",
];
const LTSF: &[&str] =
    &["https://huggingface.co/datasets/pkr7098/time-series-forecasting-datasets/resolve/main"];

const FASTAI: &[&str] = &["https://s3.amazonaws.com/fast-ai-imageclas"];
const TORONTO: &[&str] = &["https://www.cs.toronto.edu/~kriz"];
const PETS: &[&str] = &[
    "https://www.robots.ox.ac.uk/~vgg/data/pets/data",
    "https://thor.robots.ox.ac.uk/datasets/pets",
];
const SPEECH_COMMANDS: &[&str] = &[
    "https://storage.googleapis.com/download.tensorflow.org/data",
    "http://download.tensorflow.org/data",
];

// The hashes of archives are those of TensorFlow Datasets (`url_checksums`).
const SETS: [KnownSet; 15] = [
    KnownSet {
        path: "mnist",
        form: Form::Folder,
        files: &[
            file(
                "train-images-idx3-ubyte.gz",
                MNIST,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            file(
                "train-labels-idx1-ubyte.gz",
                MNIST,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            file(
                "t10k-images-idx3-ubyte.gz",
                MNIST,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            file(
                "t10k-labels-idx1-ubyte.gz",
                MNIST,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
    },
    KnownSet {
        path: "fashion-mnist",
        form: Form::Folder,
        files: &[
            file(
                "train-images-idx3-ubyte.gz",
                FASHION,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            file(
                "train-labels-idx1-ubyte.gz",
                FASHION,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            file(
                "t10k-images-idx3-ubyte.gz",
                FASHION,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            file(
                "t10k-labels-idx1-ubyte.gz",
                FASHION,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ],
    },
    one(
        "ETTh1.csv",
        &[file(
            "ETTh1.csv",
            ETT,
            "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
        )],
    ),
    one(
        "ETTh2.csv",
        &[file(
            "ETTh2.csv",
            ETT,
            "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
        )],
    ),
    one(
        "ETTm1.csv",
        &[file(
            "ETTm1.csv",
            ETT,
            "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
        )],
    ),
    one(
        "ETTm2.csv",
        &[file(
            "ETTm2.csv",
            ETT,
            "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd",
        )],
    ),
    one(
        "exchange_rate.csv",
        &[file(
            "exchange_rate.csv",
            LTSF,
            "d55e7aa2641009814a18ba3279431b13f6d413b0eab195b9ff21988d8cf94e97",
        )],
    ),
    one(
        "tinyshakespeare/input.txt",
        &[file(
            "input.txt",
            CHAR_RNN,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )],
    ),
    one(
        "alpaca_data.json",
        &[file(
            "alpaca_data.json",
            ALPACA,
            "2eddafc6b977608d778aaab8dfc7e50e547b3af9826dfb9e909d9fc362e4a419",
        )],
    ),
    unpacked(
        "imagenette2-160",
        Layout::Folder,
        &[file(
            "imagenette2-160.tgz",
            FASTAI,
            "88daccb09b6fce93f45e6c09ddeb269cce705549e6bff322092a2a5a11489863",
        )],
    ),
    unpacked(
        "imagenette2-320",
        Layout::Folder,
        &[file(
            "imagenette2-320.tgz",
            FASTAI,
            "5020a9130cea0348272823cb12d2db7e981c6f2afa3dce71ccd5b8013005c55e",
        )],
    ),
    unpacked(
        "cifar10-images",
        Layout::Cifar { labels: 1, names: "batches.meta.txt" },
        &[file(
            "cifar-10-binary.tar.gz",
            TORONTO,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )],
    ),
    unpacked(
        "cifar100-images",
        Layout::Cifar { labels: 2, names: "fine_label_names.txt" },
        &[file(
            "cifar-100-binary.tar.gz",
            TORONTO,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        )],
    ),
    unpacked(
        "oxford-iiit-pet",
        Layout::Pets,
        &[
            file(
                "annotations.tar.gz",
                PETS,
                "52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
            ),
            file(
                "images.tar.gz",
                PETS,
                "67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
            ),
        ],
    ),
    unpacked(
        "speech_commands",
        Layout::SpeechCommands,
        &[file(
            "speech_commands_v0.02.tar.gz",
            SPEECH_COMMANDS,
            "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        )],
    ),
];

const fn unpacked(path: &'static str, layout: Layout, files: &'static [KnownFile]) -> KnownSet {
    KnownSet { path, form: Form::Unpacked(layout), files }
}

const fn one(path: &'static str, files: &'static [KnownFile]) -> KnownSet {
    KnownSet { path, form: Form::File, files }
}

impl KnownSet {
    /// The set that is expected at `path`, by the end of it, and the path of that set: `path`, or the folder of an
    /// unpacked set that `path` is in.
    pub fn at(path: &Path) -> Option<(&'static Self, &Path)> {
        SETS.iter().find_map(|set| {
            let is_unpacked = matches!(set.form, Form::Unpacked(_));
            let mut places = path.ancestors().take(if is_unpacked { usize::MAX } else { 1 });
            Some((set, places.find(|place| place.ends_with(set.path))?))
        })
    }

    /// Ends of the paths of all sets.
    pub fn paths() -> impl Iterator<Item = &'static str> {
        SETS.iter().map(|set| set.path)
    }

    /// The folder into which the files of the set at `path` are fetched. Archives have one of their own, so that none
    /// is taken for a file of the user's.
    pub fn folder(&self, path: &Path) -> PathBuf {
        match self.form {
            Form::Folder => path.to_owned(),
            Form::File => path.parent().unwrap_or(path).to_owned(),
            Form::Unpacked(_) => {
                let mut name = path.as_os_str().to_owned();
                name.push(".archives");
                name.into()
            }
        }
    }

    /// Files of the set at `path` that are to be fetched, and the path of each. A file that is there without its ending
    /// `.gz` is there.
    pub(crate) fn absent(&self, path: &Path) -> Vec<(&'static KnownFile, PathBuf)> {
        let place = |file: &'static KnownFile| match self.form {
            Form::File => (file, path.to_owned()),
            Form::Folder | Form::Unpacked(_) => (file, self.folder(path).join(file.name)),
        };
        let is_unpacked = |path: &Path| {
            let ending = path.extension().filter(|_| matches!(self.form, Form::Folder));
            ending.is_some_and(|ending| ending == "gz") && path.with_extension("").exists()
        };
        let is_absent = |(_, path): &(_, PathBuf)| !path.exists() && !is_unpacked(path);
        self.files.iter().map(place).filter(is_absent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_known_by_the_end_of_its_path_and_its_files_by_their_hashes() {
        let at = |path: &str| KnownSet::at(Path::new(path)).map(|(set, _)| set.path);
        assert_eq!(at("/home/u/data/mnist"), Some("mnist"));
        assert_eq!(at("data/fashion-mnist"), Some("fashion-mnist"));
        assert_eq!(at("../ETT-small/ETTh1.csv"), Some("ETTh1.csv"));
        assert_eq!(at("data/tinyshakespeare/input.txt"), Some("tinyshakespeare/input.txt"));
        assert_eq!(at("data/input.txt"), None);
        assert_eq!(at("data/my-mnist"), None);
        assert_eq!(at("data/mnist/train"), None, "the folder is named, not one of its files");
        let inside = KnownSet::at(Path::new("../data/imagenette2-160/train")).unwrap();
        assert_eq!(inside.1, Path::new("../data/imagenette2-160"));
        for file in SETS.iter().flat_map(|set| set.files) {
            let is_hex = file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(file.sha256.len() == 64 && is_hex, "{}", file.name);
            let is_folder = |mirror: &&str| mirror.starts_with("http") && !mirror.ends_with('/');
            assert!(file.mirrors.iter().all(is_folder), "{}", file.name);
        }
    }

    #[test]
    fn what_is_there_in_either_form_is_not_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let (mnist, _) = KnownSet::at(Path::new("mnist")).unwrap();
        let place = folder.path().join("mnist");
        assert_eq!(mnist.absent(&place).len(), 4);
        ddprun_host::files::create_folder(&place).unwrap();
        ddprun_host::files::write_atomic(&place.join("train-images-idx3-ubyte"), b"x").unwrap();
        ddprun_host::files::write_atomic(&place.join("t10k-labels-idx1-ubyte.gz"), b"x").unwrap();
        let absent: Vec<&str> = mnist.absent(&place).iter().map(|(file, _)| file.name).collect();
        assert_eq!(absent, ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"]);
    }
}
