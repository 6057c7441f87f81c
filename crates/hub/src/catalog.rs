//! Well-known data sets: where their files are, and what they must be.
//!
//! A set is known by the end of the path at which an experiment expects it, such as
//! `data/mnist` or `ETTh1.csv`.

use std::path::{Path, PathBuf};

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
    /// True if `path` is a folder, which holds the files.
    pub is_folder: bool,
    files: &'static [KnownFile],
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
const LTSF: &[&str] =
    &["https://huggingface.co/datasets/pkr7098/time-series-forecasting-datasets/resolve/main"];

const SETS: [KnownSet; 8] = [
    KnownSet {
        path: "mnist",
        is_folder: true,
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
        is_folder: true,
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
];

const fn one(path: &'static str, files: &'static [KnownFile]) -> KnownSet {
    KnownSet { path, is_folder: false, files }
}

impl KnownSet {
    /// The set that is expected at `path`, by the end of it.
    pub fn at(path: &Path) -> Option<&'static Self> {
        SETS.iter().find(|set| path.ends_with(set.path))
    }

    /// Ends of the paths of all sets.
    pub fn paths() -> impl Iterator<Item = &'static str> {
        SETS.iter().map(|set| set.path)
    }

    /// Files of the set that are not at `path`, and the path of each. A file that is there without its ending `.gz` is
    /// there.
    pub fn absent(&self, path: &Path) -> Vec<(&'static KnownFile, PathBuf)> {
        let place = |file: &'static KnownFile| {
            (file, if self.is_folder { path.join(file.name) } else { path.to_owned() })
        };
        let is_absent =
            |(_, path): &(_, PathBuf)| !path.exists() && !path.with_extension("").exists();
        self.files.iter().map(place).filter(is_absent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_known_by_the_end_of_its_path_and_its_files_by_their_hashes() {
        let at = |path: &str| KnownSet::at(Path::new(path)).map(|set| set.path);
        assert_eq!(at("/home/u/data/mnist"), Some("mnist"));
        assert_eq!(at("data/fashion-mnist"), Some("fashion-mnist"));
        assert_eq!(at("../ETT-small/ETTh1.csv"), Some("ETTh1.csv"));
        assert_eq!(at("data/tinyshakespeare/input.txt"), Some("tinyshakespeare/input.txt"));
        assert_eq!(at("data/input.txt"), None);
        assert_eq!(at("data/my-mnist"), None);
        for file in SETS.iter().flat_map(|set| set.files) {
            assert!(
                file.sha256.len() == 64 && file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit())
            );
            assert!(
                file.mirrors
                    .iter()
                    .all(|mirror| mirror.starts_with("https://") && !mirror.ends_with('/'))
            );
        }
    }

    #[test]
    fn what_is_there_in_either_form_is_not_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let mnist = KnownSet::at(Path::new("mnist")).unwrap();
        let place = folder.path().join("mnist");
        assert_eq!(mnist.absent(&place).len(), 4);
        ddprun_host::files::create_folder(&place).unwrap();
        ddprun_host::files::write_atomic(&place.join("train-images-idx3-ubyte"), b"x").unwrap();
        ddprun_host::files::write_atomic(&place.join("t10k-labels-idx1-ubyte.gz"), b"x").unwrap();
        let absent: Vec<&str> = mnist.absent(&place).iter().map(|(file, _)| file.name).collect();
        assert_eq!(absent, ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"]);
    }
}
