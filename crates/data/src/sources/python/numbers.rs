//! Numbers that Python sends -> f32.

/// A type of numbers, by the name that `worker.py` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    /// Lists of Python's numbers, sent as f64.
    List,
    Bool,
    Unsigned(usize),
    Signed(usize),
    Float(usize),
}

impl Dtype {
    /// The type called `name`: `f4`, `u1` ... ; `None` if ddprun does not read it.
    pub(super) fn of(name: &str) -> Option<Self> {
        let size = name.get(1..).and_then(|size| size.parse().ok());
        match (name, size) {
            ("list", _) => Some(Self::List),
            ("b1", _) => Some(Self::Bool),
            (name, Some(size @ (1 | 2 | 4 | 8))) if name.starts_with('u') => {
                Some(Self::Unsigned(size))
            }
            (name, Some(size @ (1 | 2 | 4 | 8))) if name.starts_with('i') => {
                Some(Self::Signed(size))
            }
            (name, Some(size @ (2 | 4 | 8))) if name.starts_with('f') => Some(Self::Float(size)),
            _ => None,
        }
    }

    /// Its name in NumPy and PyTorch, for messages.
    pub(super) fn words(self) -> String {
        match self {
            Self::List => "list".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Unsigned(size) => format!("uint{}", 8 * size),
            Self::Signed(size) => format!("int{}", 8 * size),
            Self::Float(size) => format!("float{}", 8 * size),
        }
    }

    /// The name that `worker.py` gives it.
    pub(super) fn name(self) -> String {
        match self {
            Self::List => "list".to_owned(),
            Self::Bool => "b1".to_owned(),
            Self::Unsigned(size) => format!("u{size}"),
            Self::Signed(size) => format!("i{size}"),
            Self::Float(size) => format!("f{size}"),
        }
    }

    pub(super) fn size(self) -> usize {
        match self {
            Self::List => 8,
            Self::Bool => 1,
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => size,
        }
    }

    /// Appends the numbers of `bytes` to `values`.
    ///
    /// # Errors
    ///
    /// The position of the first number that is not finite as f32, and the number.
    pub(super) fn read(self, bytes: &[u8], values: &mut Vec<f32>) -> Result<(), (usize, f64)> {
        let start = values.len();
        match self {
            Self::Bool => values.extend(bytes.iter().map(|&byte| f32::from(u8::from(byte != 0)))),
            Self::Unsigned(1) => values.extend(bytes.iter().map(|&byte| f32::from(byte))),
            Self::Unsigned(2) => extend(values, bytes, |it| f32::from(u16::from_ne_bytes(it))),
            Self::Unsigned(4) => extend(values, bytes, |it| u32::from_ne_bytes(it) as f32),
            Self::Unsigned(_) => extend(values, bytes, |it| u64::from_ne_bytes(it) as f32),
            Self::Signed(1) => extend(values, bytes, |it| f32::from(i8::from_ne_bytes(it))),
            Self::Signed(2) => extend(values, bytes, |it| f32::from(i16::from_ne_bytes(it))),
            Self::Signed(4) => extend(values, bytes, |it| i32::from_ne_bytes(it) as f32),
            Self::Signed(_) => extend(values, bytes, |it| i64::from_ne_bytes(it) as f32),
            Self::Float(2) => extend(values, bytes, |it| half::f16::from_ne_bytes(it).to_f32()),
            Self::Float(4) => extend(values, bytes, f32::from_ne_bytes),
            Self::List | Self::Float(_) => {
                extend(values, bytes, |it| f64::from_ne_bytes(it) as f32);
            }
        }
        match values[start..].iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err((at, f64::from(values[start + at]))),
        }
    }
}

fn extend<const N: usize>(values: &mut Vec<f32>, bytes: &[u8], number: impl Fn([u8; N]) -> f32) {
    let (numbers, _) = bytes.as_chunks::<N>();
    values.extend(numbers.iter().map(|&bytes| number(bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_types_become_f32() {
        let read = |name: &str, bytes: &[u8]| {
            let dtype = Dtype::of(name).unwrap();
            assert_eq!((bytes.len() % dtype.size(), dtype.name().as_str()), (0, name));
            let mut values = vec![7.0];
            dtype.read(bytes, &mut values).map(|()| values[1..].to_vec())
        };
        assert_eq!(
            read("list", &[1.5f64.to_ne_bytes(), (-2f64).to_ne_bytes()].concat()).unwrap(),
            [1.5, -2.0]
        );
        assert_eq!(read("b1", &[0, 1, 2]).unwrap(), [0.0, 1.0, 1.0]);
        assert_eq!(read("u1", &[0, 255]).unwrap(), [0.0, 255.0]);
        assert_eq!(read("u2", &65_535u16.to_ne_bytes()).unwrap(), [65_535.0]);
        assert_eq!(read("u4", &3u32.to_ne_bytes()).unwrap(), [3.0]);
        assert_eq!(read("u8", &3u64.to_ne_bytes()).unwrap(), [3.0]);
        assert_eq!(read("i1", &(-3i8).to_ne_bytes()).unwrap(), [-3.0]);
        assert_eq!(read("i2", &(-3i16).to_ne_bytes()).unwrap(), [-3.0]);
        assert_eq!(read("i4", &(-3i32).to_ne_bytes()).unwrap(), [-3.0]);
        assert_eq!(read("i8", &(-3i64).to_ne_bytes()).unwrap(), [-3.0]);
        assert_eq!(read("f2", &0x3e00u16.to_ne_bytes()).unwrap(), [1.5]);
        assert_eq!(read("f4", &1.5f32.to_ne_bytes()).unwrap(), [1.5]);
        assert_eq!(read("f8", &0.1f64.to_ne_bytes()).unwrap(), [0.1f32]);
        for name in ["f1", "c8", "u3", "", "é", "list2", "M8"] {
            assert_eq!(Dtype::of(name), None, "{name}");
        }
        assert_eq!(Dtype::of("f4").unwrap().words(), "float32");
    }

    #[test]
    fn a_number_that_is_not_finite_is_found() {
        let bytes = [0.5f32, 1.0, f32::INFINITY].map(f32::to_ne_bytes).concat();
        let (at, value) = Dtype::Float(4).read(&bytes, &mut vec![1.0]).unwrap_err();
        assert!(at == 2 && value.is_infinite());
        let bytes = 1e300f64.to_ne_bytes();
        assert_eq!(Dtype::List.read(&bytes, &mut Vec::new()).unwrap_err().0, 0);
    }
}
