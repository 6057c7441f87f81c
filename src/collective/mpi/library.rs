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

use bytemuck::Pod;

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
    ibcast = c"MPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut u64);
    ialltoallv = c"MPI_Ialltoallv" (
        *const c_void, *const c_int, *const c_int, Handle,
        *mut c_void, *const c_int, *const c_int, Handle, Handle, *mut u64);
    iallgatherv = c"MPI_Iallgatherv" (
        *const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle,
        *mut u64);
}

/// What has another value in each library.
struct Constants {
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    /// `MPI_THREAD_SERIALIZED`
    serialized: c_int,
}

impl Constants {
    fn of(library: *mut c_void, file: &Path) -> Self {
        let open_mpi = |name: &CStr| symbol(library, name);
        let is_standard = file.to_string_lossy().contains("libmpi_abi");
        if is_standard {
            return Self { world: 0x101, byte: 0x247, errors_return: 0x143, serialized: 2048 };
        }
        let world = open_mpi(c"ompi_mpi_comm_world");
        let (byte, errors) = (open_mpi(c"ompi_mpi_byte"), open_mpi(c"ompi_mpi_errors_return"));
        if let (Some(world), Some(byte), Some(errors_return)) = (world, byte, errors) {
            return Self { world, byte, errors_return, serialized: 2 };
        }
        let (world, byte) = (0x4400_0000, 0x4c00_010d);
        Self { world, byte, errors_return: 0x5400_0001, serialized: 2 }
    }
}

/// An open library.
pub(super) struct Library {
    functions: Functions,
    constants: Constants,
    /// The file that the loader found.
    pub(super) file: PathBuf,
    /// What it calls itself.
    pub(super) version: String,
    /// Version of the standard.
    pub(super) standard: (c_int, c_int),
}

/// Where a rank's bytes are in the memory of all: the bytes of each rank, and where they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    counts: Vec<c_int>,
    starts: Vec<c_int>,
}

impl Layout {
    /// Parts of these bytes, one after another.
    pub(super) fn of(lengths: impl IntoIterator<Item = usize>) -> Result<Self, String> {
        let mut layout = Self::default();
        let mut end = 0;
        for bytes in lengths {
            let int = |n: usize| c_int::try_from(n).map_err(|_| "more than 2 GiB at once");
            layout.counts.push(int(bytes)?);
            layout.starts.push(int(end)?);
            end += bytes;
            int(end)?;
        }
        Ok(layout)
    }

    fn total(&self) -> usize {
        self.counts.iter().map(|&bytes| bytes as usize).sum()
    }
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

    /// Whether it is complete; lets the library work on it.
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

/// Buffers of [`Library::all_to_all`].
pub(super) struct Scattered {
    /// What was sent.
    pub(super) values: Vec<f32>,
    /// What all ranks sent to this one, in rank order.
    pub(super) parts: Vec<f32>,
    _layouts: [Layout; 2],
}

/// Buffers of [`Library::all_gather`].
pub(super) struct Gathered<T> {
    /// What this rank sent.
    pub(super) mine: Vec<T>,
    /// What all ranks sent, in rank order.
    pub(super) all: Vec<T>,
    _layout: Layout,
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
        let (constants, version) = (Constants::of(opened, &file), String::new());
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
        let (count, to) = (bytes.len() as c_int, to as c_int);
        Transfer::begin(self, bytes, |bytes, request| {
            // SAFETY: the memory lives and stays where it is until the transfer is complete.
            unsafe { isend(bytes.as_ptr().cast(), count, byte, to, tag, world, request) }
        })
    }

    pub(super) fn receive(
        &self,
        length: usize,
        from: usize,
        tag: c_int,
    ) -> Result<Transfer<Vec<u8>>, String> {
        let Constants { world, byte, .. } = self.constants;
        let irecv = self.functions.irecv;
        let (count, from) = (length as c_int, from as c_int);
        Transfer::begin(self, vec![0; length], |bytes, request| {
            // SAFETY: as in `send`; a longer message is an error.
            unsafe { irecv(bytes.as_mut_ptr().cast(), count, byte, from, tag, world, request) }
        })
    }

    /// Whether a message with this tag has come from a rank.
    pub(super) fn has_message(&self, from: usize, tag: c_int) -> Result<bool, String> {
        let (mut flag, mut status): (c_int, Status) = (0, [0; 16]);
        let (iprobe, world) = (self.functions.iprobe, self.constants.world);
        // SAFETY: places for two answers.
        let code = unsafe { iprobe(from as c_int, tag, world, &raw mut flag, &raw mut status) };
        self.checked(code).map(|()| flag != 0)
    }

    /// Replaces `bytes` by those of rank 0.
    pub(super) fn broadcast(&self, bytes: Vec<u8>) -> Result<Transfer<Vec<u8>>, String> {
        let Constants { world, byte, .. } = self.constants;
        let (ibcast, count) = (self.functions.ibcast, bytes.len() as c_int);
        Transfer::begin(self, bytes, |bytes, request| {
            // SAFETY: as in `send`.
            unsafe { ibcast(bytes.as_mut_ptr().cast(), count, byte, 0, world, request) }
        })
    }

    /// Sends each rank its part of `values`, which begin at element `from`, and receives all ranks'
    /// parts into `parts`.
    pub(super) fn all_to_all(
        &self,
        (values, from): (Vec<f32>, usize),
        parts: Vec<f32>,
        [sent, received]: [Layout; 2],
    ) -> Result<Transfer<Scattered>, String> {
        assert!(from * 4 + sent.total() <= values.len() * 4, "more is sent than there is");
        assert!(received.total() <= parts.len() * 4, "more is received than there is room for");
        let Constants { world, byte, .. } = self.constants;
        let call = self.functions.ialltoallv;
        let buffers = Scattered { values, parts, _layouts: [sent, received] };
        Transfer::begin(self, buffers, |buffers, request| {
            let Scattered { values, parts, _layouts: [out, into] } = buffers;
            let (out_counts, out_starts) = (out.counts.as_ptr(), out.starts.as_ptr());
            let (counts, starts) = (into.counts.as_ptr(), into.starts.as_ptr());
            let (values, parts) = (values[from..].as_ptr().cast(), parts.as_mut_ptr().cast());
            // SAFETY: as in `send`, also for the counts; all parts are within their memory.
            unsafe {
                call(
                    values, out_counts, out_starts, byte, parts, counts, starts, byte, world,
                    request,
                )
            }
        })
    }

    /// Sends the first `n` elements of `mine` to all ranks, and receives those of all into `all`,
    /// from its element `from` on.
    pub(super) fn all_gather<T: Pod>(
        &self,
        (mine, n): (Vec<T>, usize),
        (all, from): (Vec<T>, usize),
        layout: Layout,
    ) -> Result<Transfer<Gathered<T>>, String> {
        let size = size_of::<T>();
        assert!(n <= mine.len(), "more is sent than there is");
        assert!(from * size + layout.total() <= all.len() * size, "more comes than there is room");
        let Constants { world, byte, .. } = self.constants;
        let (call, count) = (self.functions.iallgatherv, (n * size) as c_int);
        let buffers = Gathered { mine, all, _layout: layout };
        Transfer::begin(self, buffers, |buffers, request| {
            let Gathered { mine, all, _layout: layout } = buffers;
            let (counts, starts) = (layout.counts.as_ptr(), layout.starts.as_ptr());
            let (mine, all) = (mine.as_ptr().cast(), all[from..].as_mut_ptr().cast());
            // SAFETY: as in `all_to_all`.
            unsafe { call(mine, count, byte, all, counts, starts, byte, world, request) }
        })
    }

    fn checked(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = (vec![0_u8; TEXT_BYTES], 0);
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
    use super::*;

    #[test]
    fn parts_follow_one_another_and_two_gib_are_too_much() {
        let layout = Layout::of([4, 0, 8]).unwrap();
        assert_eq!(
            (layout.counts.as_slice(), layout.starts.as_slice()),
            (&[4, 0, 8][..], &[0, 4, 4][..])
        );
        assert_eq!(layout.total(), 12);
        assert!(Layout::of([1 << 30, 1 << 30]).is_err());
    }

    #[test]
    fn what_is_no_mpi_library_says_what_it_lacks() {
        let error = Library::open(Path::new("libc.so.6")).map(|_| ()).unwrap_err();
        assert_eq!(error, "it has no `MPI_Init_thread`");
        assert!(Library::open(Path::new("libmpi.so.none")).is_err());
    }
}
