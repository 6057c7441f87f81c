//! The `ddprun` command: the library's command line with the kinds that come with it.

use std::process::ExitCode;

use ddprun::memory::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &ddprun::kinds::Kinds::default())
}
