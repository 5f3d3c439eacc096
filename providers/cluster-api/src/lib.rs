//! The ClusterAPI provider: its NodeClass.
