//! The program: everything is in the library.

fn main() -> std::process::ExitCode {
    quantize_rs_cli::run(std::env::args_os())
}
