//! The CloudStack provider: its NodeClass.
