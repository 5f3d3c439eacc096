//! The mirror from outside: apply and delete objects, look at the snapshot.

mod buffers;
mod facts;
mod karpenter;
mod machines;
mod mirror;
mod objects;
