//! A synchronous mirror of the cluster: objects go in one by one, an engine snapshot comes out.
