#![expect(unsafe_code, reason = "a library of C is opened and called")]
//! The functions of an open library, with memory that lives as long as a transfer.
//!
//! Handles are numbers of 32 bits in MPICH and addresses elsewhere. Both are passed as numbers of
//! the size of an address: in all calling conventions of 64-bit Linux a callee that wants 32 bits
//! reads the lower half of the same register or place on the stack.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

type Handle = usize;
/// Longest text that a library writes, with some to spare.
const TEXT_BYTES: usize = 16 << 10;
/// A `MPI_Status`, which is smaller everywhere.
type Status = [u64; 16];

macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Functions {
            fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self { $($field: {
                    type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                    let address = symbol(library, $name)
                        .ok_or_else(|| format!("it has no `{}`", $name.to_string_lossy()))?;
                    // SAFETY: the standard gives the function of this name these arguments.
                    unsafe { std::mem::transmute::<usize, Function>(address) }
                },)* })
            }
        }
    };
}

functions! {
    init_thread = c"MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = c"MPI_Finalize" ();
    abort = c"MPI_Abort" (Handle, c_int);
    comm_rank = c"MPI_Comm_rank" (Handle, *mut c_int);
    comm_size = c"MPI_Comm_size" (Handle, *mut c_int);
    comm_set_errhandler = c"MPI_Comm_set_errhandler" (Handle, Handle);
    get_version = c"MPI_Get_version" (*mut c_int, *mut c_int);
    get_library_version = c"MPI_Get_library_version" (*mut c_char, *mut c_int);
    error_string = c"MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    isend = c"MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut u64);
    irecv = c"MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut u64);
    iprobe = c"MPI_Iprobe" (c_int, c_int, Handle, *mut c_int, *mut Status);
    test = c"MPI_Test" (*mut u64, *mut c_int, *mut Status);
    get_count = c"MPI_Get_count" (*const Status, Handle, *mut c_int);
    iallreduce = c"MPI_Iallreduce" (
        *const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut u64);
}

/// Constants whose values differ between libraries.
struct Constants {
    world: Handle,
    byte: Handle,
    float: Handle,
    sum: Handle,
    errors_return: Handle,
    /// `MPI_THREAD_SERIALIZED`
    serialized: c_int,
}

impl Constants {
    fn of(library: *mut c_void, file: &Path) -> Self {
        let open_mpi = |name: &CStr| symbol(library, name);
        let is_standard = file.to_string_lossy().contains("libmpi_abi");
        if is_standard {
            let byte = 0x247;
            let float = 0x210;
            let sum = 0x21;
            return Self { world: 0x101, byte, float, sum, errors_return: 0x143, serialized: 2048 };
        }
        let of_open_mpi = || {
            Some(Self {
                world: open_mpi(c"ompi_mpi_comm_world")?,
                byte: open_mpi(c"ompi_mpi_byte")?,
                float: open_mpi(c"ompi_mpi_float")?,
                sum: open_mpi(c"ompi_mpi_op_sum")?,
                errors_return: open_mpi(c"ompi_mpi_errors_return")?,
                serialized: 2,
            })
        };
        of_open_mpi().unwrap_or(Self {
            world: 0x4400_0000,
            byte: 0x4c00_010d,
            float: 0x4c00_040a,
            sum: 0x5800_0003,
            errors_return: 0x5400_0001,
            serialized: 2,
        })
    }
}

/// An open library.
pub(super) struct Library {
    functions: Functions,
    constants: Constants,
    /// The file that the loader found.
    pub(super) file: PathBuf,
    /// Name and version, in the library's words.
    pub(super) version: String,
    /// Version of the standard.
    pub(super) standard: (c_int, c_int),
}

/// A transfer under way, with the memory that it reads or writes. If it is given up, the memory is
/// leaked: the library may still use it.
pub(super) struct Transfer<B> {
    request: u64,
    is_done: bool,
    buffers: ManuallyDrop<B>,
}

impl<B> Transfer<B> {
    fn begin(
        library: &Library,
        mut buffers: B,
        call: impl FnOnce(&mut B, *mut u64) -> c_int,
    ) -> Result<Self, String> {
        let mut request = 0;
        let code = call(&mut buffers, &raw mut request);
        let transfer = Self { request, is_done: false, buffers: ManuallyDrop::new(buffers) };
        library.checked(code).map(|()| transfer)
    }

    /// Lets the library work on the transfer; true if it is complete.
    pub(super) fn poll(&mut self, library: &Library) -> Result<bool, String> {
        if !self.is_done {
            let (mut flag, mut status): (c_int, Status) = (0, [0; 16]);
            let test = library.functions.test;
            // SAFETY: the request is one of this library that is not complete; the others are
            // places for its answers.
            let code = unsafe { test(&raw mut self.request, &raw mut flag, &raw mut status) };
            library.checked(code)?;
            self.is_done = flag != 0;
        }
        Ok(self.is_done)
    }

    /// The memory, once it is complete.
    pub(super) fn finish(mut self) -> Option<B> {
        // SAFETY: `self` ends here, and is not used again.
        self.is_done.then(|| unsafe { ManuallyDrop::take(&mut self.buffers) })
    }
}

impl Library {
    /// Opens `file`, or what the loader finds by that name. Nothing is initialised.
    pub(super) fn open(file: &Path) -> Result<Self, String> {
        let name = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // Open MPI's components need its symbols.
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: an MPI library, whose constructors are made for this. It is never closed.
        let opened = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if opened.is_null() {
            return Err(last_error());
        }
        let functions = Functions::find(opened)?;
        let file = file_of(functions.finalize as usize).unwrap_or_else(|| file.to_owned());
        let constants = Constants::of(opened, &file);
        let version = String::new();
        let mut library = Self { functions, constants, file, version, standard: (0, 0) };
        library.ask_version()?;
        Ok(library)
    }

    /// Both may be asked before MPI is initialised.
    fn ask_version(&mut self) -> Result<(), String> {
        let (mut major, mut minor, mut length) = (0, 0, 0);
        let mut text = vec![0_u8; TEXT_BYTES];
        let Functions { get_version, get_library_version, .. } = self.functions;
        // SAFETY: places for two numbers.
        self.checked(unsafe { get_version(&raw mut major, &raw mut minor) })?;
        // SAFETY: places for a text that is shorter everywhere, and for its length.
        self.checked(unsafe { get_library_version(text.as_mut_ptr().cast(), &raw mut length) })?;
        self.standard = (major, minor);
        // Open MPI goes on with who has built it.
        self.version = first_line(&text).chars().take_while(|c| *c != ',').collect();
        Ok(())
    }

    /// Initialises MPI for calls by one thread at a time; the rank and the number of ranks.
    pub(super) fn initialise(&self) -> Result<(c_int, c_int), String> {
        let Functions { init_thread, comm_rank, comm_size, comm_set_errhandler, .. } =
            self.functions;
        let Constants { world, errors_return, serialized, .. } = self.constants;
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: the arguments of the program may be left out; a place for the answer.
        let code = unsafe { init_thread(null, null.cast(), serialized, &raw mut provided) };
        self.checked(code)?;
        if provided < serialized {
            return Err("it cannot be called by more than one thread".to_owned());
        }
        // SAFETY: handles of this library, and a place for each answer.
        let codes = unsafe {
            [
                comm_set_errhandler(world, errors_return),
                comm_rank(world, &raw mut rank),
                comm_size(world, &raw mut size),
            ]
        };
        codes.into_iter().try_for_each(|code| self.checked(code))?;
        Ok((rank, size))
    }

    /// Ends MPI: waits for all ranks to do so. No other function may be called then.
    pub(super) fn finalise(&self) {
        // SAFETY: MPI was initialised, and all transfers are complete. An error leaves nothing
        // to do: the process ends.
        let _ = unsafe { (self.functions.finalize)() };
    }

    /// Ends all ranks. The library may end this process at once.
    pub(super) fn abort(&self, code: u8) {
        // SAFETY: MPI was initialised.
        let _ = unsafe { (self.functions.abort)(self.constants.world, c_int::from(code)) };
    }

    pub(super) fn send(
        &self,
        bytes: Vec<u8>,
        to: usize,
        tag: c_int,
    ) -> Result<Transfer<Vec<u8>>, String> {
        let Constants { world, byte, .. } = self.constants;
        let isend = self.functions.isend;
        let count = bytes.len() as c_int;
        let to = to as c_int;
        Transfer::begin(self, bytes, |bytes, request| {
            // SAFETY: the memory lives and stays where it is until the transfer is complete.
            unsafe { isend(bytes.as_ptr().cast(), count, byte, to, tag, world, request) }
        })
    }

    /// Receives so many bytes into `memory`, which becomes as long.
    pub(super) fn receive(
        &self,
        mut memory: Vec<u8>,
        length: usize,
        from: usize,
        tag: c_int,
    ) -> Result<Transfer<Vec<u8>>, String> {
        let Constants { world, byte, .. } = self.constants;
        let irecv = self.functions.irecv;
        let count = length as c_int;
        let from = from as c_int;
        memory.resize(length, 0);
        Transfer::begin(self, memory, |bytes, request| {
            // SAFETY: as in `send`; a longer message is an error.
            unsafe { irecv(bytes.as_mut_ptr().cast(), count, byte, from, tag, world, request) }
        })
    }

    /// The bytes of the next message with this tag from a rank, if one has come.
    pub(super) fn message(&self, from: usize, tag: c_int) -> Result<Option<usize>, String> {
        let (mut flag, mut count, mut status): (c_int, c_int, Status) = (0, 0, [0; 16]);
        let Functions { iprobe, get_count, .. } = self.functions;
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: places for two answers.
        let code = unsafe { iprobe(from as c_int, tag, world, &raw mut flag, &raw mut status) };
        self.checked(code)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: the status that was just written, and a place for the answer.
        self.checked(unsafe { get_count(&raw const status, byte, &raw mut count) })?;
        usize::try_from(count).map(Some).map_err(|_| "a message is too long".to_owned())
    }

    /// The sums of all ranks' `values`, beside these.
    pub(super) fn all_reduce(
        &self,
        values: Vec<f32>,
        mut sums: Vec<f32>,
    ) -> Result<Transfer<[Vec<f32>; 2]>, String> {
        let Constants { world, float, sum, .. } = self.constants;
        let iallreduce = self.functions.iallreduce;
        let count = c_int::try_from(values.len()).map_err(|_| "more than 2^31 values at once")?;
        sums.resize(values.len(), 0.0);
        Transfer::begin(self, [values, sums], |[values, sums], request| {
            let values = values.as_ptr().cast();
            let sums = sums.as_mut_ptr().cast();
            // SAFETY: as in `send`; both are as long.
            unsafe { iallreduce(values, sums, count, float, sum, world, request) }
        })
    }

    fn checked(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0_u8; TEXT_BYTES];
        let mut length = 0;
        let error_string = self.functions.error_string;
        // SAFETY: places for a text that is shorter everywhere, and for its length.
        let known = unsafe { error_string(code, text.as_mut_ptr().cast(), &raw mut length) } == 0;
        Err(if known { first_line(&text) } else { format!("error {code}") })
    }
}

fn first_line(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).unwrap_or_default().to_string_lossy();
    let words: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

fn last_error() -> String {
    // SAFETY: null, or a text that lives until this thread's next call.
    let words: *mut c_char = unsafe { libc::dlerror() };
    if words.is_null() {
        return "it cannot be opened".to_owned();
    }
    // SAFETY: not null, as above.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<usize> {
    // SAFETY: the handle is that of a library that is never closed.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// The file in which a function is.
fn file_of(address: usize) -> Option<PathBuf> {
    // SAFETY: all fields are pointers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a place for one answer.
    let is_known = unsafe { libc::dladdr(address as *const c_void, &raw mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a text that lives as long as the library.
    let file = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(file.to_bytes())))
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn what_is_no_mpi_library_says_what_it_lacks() {
        let error = Library::open(Path::new("libc.so.6")).map(|_| ()).unwrap_err();
        assert_eq!(error, "it has no `MPI_Init_thread`");
        assert_refused(Library::open(Path::new("libmpi.so.none")), "libmpi.so.none");
    }
}
