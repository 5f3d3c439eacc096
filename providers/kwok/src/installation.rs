//! How the provider joins the program: its catalogue from the settings, its watch, and the boots it goes on with.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use karpenter_cloudprovider::{InstallError, Installation, Part, Surroundings};
use karpenter_runtime::informer::Informer;
use tokio_util::sync::CancellationToken;

use crate::boot::Boots;
use crate::{Catalogue, KwokProvider};

/// The provider with what runs beside it.
///
/// # Errors
///
/// If the instance type file of the settings cannot be used.
pub fn install(around: &Surroundings) -> Result<Installation, InstallError> {
    let file = around.options.kwok.instance_types_file_path.as_deref();
    let catalogue = Catalogue::load(file)
        .map_err(|error| InstallError { provider: "kwok", problem: error.to_string() })?;
    Ok(install_with(catalogue, around))
}

/// As [`install`], with a catalogue of its own.
pub fn install_with(catalogue: Catalogue, around: &Surroundings) -> Installation {
    let (provider, watch) = KwokProvider::new(&around.client, catalogue, &around.environment);
    let boots = Arc::clone(&provider.boots);
    Installation {
        provider: Arc::new(provider),
        parts: vec![
            Part::new("watch kwoknodeclasses", move |stop| Informer::run(watch, stop).boxed()),
            Part::new("kwok boots", move |stop| resume(boots, stop)),
        ],
    }
}

/// Goes on with Nodes that were still to join when the process before this one ended.
fn resume(boots: Arc<Boots>, stop: CancellationToken) -> BoxFuture<'static, ()> {
    async move {
        tokio::select! {
            () = stop.cancelled() => return,
            () = boots.resume_all() => {}
        }
        // A part of the program ends when it is told to.
        stop.cancelled().await;
    }
    .boxed()
}
