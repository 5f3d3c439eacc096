//! The one integration-test binary of the program: its commands, and the rules of the repository.

mod crd_types;
mod decisions;
mod mutations;
mod simulate;
mod tidy;
