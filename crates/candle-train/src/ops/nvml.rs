#![expect(unsafe_code, reason = "functions of a library are called by their addresses")]
//! Utilization of a GPU, by NVML: the library behind `nvidia-smi`, which comes with the driver.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::fmt::Write;

/// Answer of its functions if all is well.
const SUCCESS: c_int = 0;

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Default)]
struct Rates {
    gpu: c_uint,
    _memory: c_uint,
}

type Init = unsafe extern "C" fn() -> c_int;
/// A handle of NVML is an opaque pointer.
type ByUuid = unsafe extern "C" fn(*const c_char, *mut usize) -> c_int;
type GetRates = unsafe extern "C" fn(usize, *mut Rates) -> c_int;

/// The library, ready to be asked.
pub(super) struct Nvml {
    by_uuid: ByUuid,
    get_rates: GetRates,
}

impl Nvml {
    /// The library whose functions are where `find` says; `None` if it lacks one or has no driver.
    pub(super) fn start(find: impl Fn(&CStr) -> Option<usize>) -> Option<Self> {
        let init = find(c"nvmlInit_v2")?;
        let by_uuid = find(c"nvmlDeviceGetHandleByUUID")?;
        let get_rates = find(c"nvmlDeviceGetUtilizationRates")?;
        // SAFETY: the function of this name has this signature.
        let init = unsafe { std::mem::transmute::<usize, Init>(init) };
        // SAFETY: as above.
        let by_uuid = unsafe { std::mem::transmute::<usize, ByUuid>(by_uuid) };
        // SAFETY: as above.
        let get_rates = unsafe { std::mem::transmute::<usize, GetRates>(get_rates) };
        // SAFETY: it takes nothing, and may be called at any time.
        (unsafe { init() } == SUCCESS).then_some(Self { by_uuid, get_rates })
    }

    /// In which share of the driver's last sample, up to a second, the GPU computed; `None` of one
    /// that it does not know or measure, such as a part of a GPU (MIG).
    pub(super) fn utilization(&self, uuid: [u8; 16]) -> Option<f64> {
        let name = CString::new(in_words(uuid)).ok()?;
        let mut device = 0;
        // SAFETY: a text with an end, and a place for one handle.
        if unsafe { (self.by_uuid)(name.as_ptr(), &raw mut device) } != SUCCESS {
            return None;
        }
        let mut rates = Rates::default();
        // SAFETY: a handle that the library has just given, and a place for one answer.
        let answer = unsafe { (self.get_rates)(device, &raw mut rates) };
        (answer == SUCCESS).then(|| f64::from(rates.gpu) / 100.0)
    }
}

/// As NVML and `nvidia-smi -L` write it.
fn in_words(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&at) { "-" } else { "" };
        // Writing into a text does not fail.
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xff];
    const HANDLE: usize = 77;

    extern "C" fn init() -> c_int {
        SUCCESS
    }

    extern "C" fn no_driver() -> c_int {
        9
    }

    extern "C" fn by_uuid(name: *const c_char, device: *mut usize) -> c_int {
        // SAFETY: a text with an end.
        let name = unsafe { CStr::from_ptr(name) };
        if name != c"GPU-8932f937-d72c-0102-0304-0506070809ff" {
            return 6;
        }
        // SAFETY: a place for one handle.
        unsafe { *device = HANDLE };
        SUCCESS
    }

    extern "C" fn get_rates(device: usize, rates: *mut Rates) -> c_int {
        assert_eq!(device, HANDLE);
        // SAFETY: a place for one answer.
        unsafe { *rates = Rates { gpu: 37, _memory: 12 } };
        SUCCESS
    }

    /// A library of these functions.
    fn library(name: &CStr) -> Option<usize> {
        match name.to_str().unwrap() {
            "nvmlInit_v2" => Some(init as extern "C" fn() -> c_int as usize),
            "nvmlDeviceGetHandleByUUID" => {
                Some(by_uuid as extern "C" fn(*const c_char, *mut usize) -> c_int as usize)
            }
            "nvmlDeviceGetUtilizationRates" => {
                Some(get_rates as extern "C" fn(usize, *mut Rates) -> c_int as usize)
            }
            _ => None,
        }
    }

    #[test]
    fn a_gpu_is_asked_for_by_its_uuid_and_an_unknown_one_has_no_answer() {
        let nvml = Nvml::start(library).unwrap();
        assert_eq!(nvml.utilization(UUID), Some(0.37));
        assert_eq!(nvml.utilization([0; 16]), None);
    }

    #[test]
    fn a_library_that_is_too_old_or_has_no_driver_is_not_asked() {
        assert!(Nvml::start(|_| None).is_none());
        let old = |name: &CStr| (name != c"nvmlInit_v2").then(|| library(name)).flatten();
        assert!(Nvml::start(old).is_none());
        let no_driver = no_driver as extern "C" fn() -> c_int as usize;
        let idle =
            |name: &CStr| if name == c"nvmlInit_v2" { Some(no_driver) } else { library(name) };
        assert!(Nvml::start(idle).is_none());
    }
}
