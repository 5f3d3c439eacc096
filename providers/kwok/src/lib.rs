//! The KWOK provider: its NodeClass.
