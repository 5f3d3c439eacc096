//! The server over HTTP: plain, on loopback unless a token protects it.

use std::future::Future;
use std::net::SocketAddr;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::server::ApiServer;

/// Why a server cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener's own address is not known.
    #[error("cannot tell the address of the listener")]
    Address(#[source] std::io::Error),
    /// Anyone on the network could write to the server.
    #[error("refusing to listen on {0} without a token: listen on a loopback address or set a token")]
    Unprotected(SocketAddr),
}

/// Serves `server` on `listener` until `shutdown`; open watches end with it.
///
/// # Errors
///
/// Refuses an address other than loopback unless the server's options ask for a bearer token.
pub async fn serve(
    listener: TcpListener,
    server: &ApiServer,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Address)?;
    if !address.ip().is_loopback() && server.options().bearer_token.is_none() {
        return Err(ServeError::Unprotected(address));
    }
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut shutdown => break,
            // A client that is gone before it is greeted concerns nobody else.
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::task::yield_now().await;
                    continue;
                }
            },
        };
        // Small answers should not wait for more to come; a socket that cannot do without is served all the same.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(server.service());
        let mut stopped = stopped.clone();
        connections.spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                biased;
                _ = stopped.changed() => {}
                // What goes wrong on one connection is its client's to notice.
                _ = connection => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
    drop(stop);
    connections.shutdown().await;
    Ok(())
}
