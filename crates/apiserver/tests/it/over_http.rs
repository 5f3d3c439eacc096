//! The server on a socket: who may talk to it, and that it stops.

use k8s_openapi::api::core::v1::Namespace;
use karpenter_apiserver::{ApiServer, Options, Seeded, ServeError, serve};
use kube::api::{Api, ListParams};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::cluster::code;

async fn client(address: std::net::SocketAddr, token: Option<&str>) -> Client {
    let mut config = Config::new(format!("http://{address}").parse().unwrap());
    config.auth_info.token = token.map(|token| token.to_owned().into());
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn requests_over_a_socket_need_the_token_and_end_with_the_server() {
    let options = Options { bearer_token: Some("secret".into()), ..Options::default() };
    let server = ApiServer::new(Seeded::default(), options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        serve(listener, &server, async {
            let _ = stopped.await;
        })
        .await
    });
    let namespaces = |client: Client| Api::<Namespace>::all(client);
    let trusted = namespaces(client(address, Some("secret")).await);
    assert_eq!(trusted.list(&ListParams::default()).await.unwrap().items.len(), 4);
    for token in [None, Some("guess")] {
        let stranger = namespaces(client(address, token).await);
        assert_eq!(code(stranger.list(&ListParams::default()).await), 401);
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert!(trusted.list(&ListParams::default()).await.is_err());
}

#[tokio::test]
async fn an_open_address_without_a_token_is_refused() {
    let server = ApiServer::new(Seeded::default(), Options::default());
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = serve(listener, &server, std::future::pending()).await;
    assert!(matches!(refused, Err(ServeError::Unprotected(_))));
}
