//! Prices from an endpoint: a JSON object with the keys of the NodeClass's price table, or what OpenCost and other exporters serve to
//! Prometheus. What is asked and how often is decided elsewhere (see `instances::learning`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;

use crate::instancetypes::price::parse;

/// Gets the text at a URL, or says why it cannot be had.
pub type Fetch = Arc<dyn Fn(String) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// How long an endpoint may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much is read of what it says.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// What OpenCost calls the price of a node.
const METRIC: &str = "node_total_hourly_cost";

/// Over the network, trusting what the system trusts.
pub(crate) fn over_http() -> Fetch {
    Arc::new(|url| {
        async move {
            let got = tokio::time::timeout(PATIENCE, get(&url)).await;
            got.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
        }
        .boxed()
    })
}

async fn get(url: &str) -> Result<String, String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("this is no URL: {error}"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut base = uri.into_parts();
    base.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let base = http::Uri::from_parts(base).map_err(|error| format!("this is no URL: {error}"))?;
    let client = Client::try_from(Config::new(base)).map_err(|error| error.to_string())?;
    let request = http::Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
    let answer = client.send(request).await.map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    String::from_utf8(body.to_vec()).map_err(|_| "it answers with something that is no text".to_owned())
}

/// What an endpoint said, by the keys of a price table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prices {
    /// What was understood.
    pub(crate) told: BTreeMap<String, f64>,
    /// Keys of which something was said that is no price, such as NaN.
    pub(crate) unclear: BTreeSet<String>,
}

/// The prices in what an endpoint said.
pub(crate) fn read(text: &str) -> Result<Prices, String> {
    if text.trim_start().starts_with('{') { from_json(text) } else { from_metrics(text) }
}

fn from_json(text: &str) -> Result<Prices, String> {
    let all: BTreeMap<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("it answers with broken JSON: {error}"))?;
    let mut prices = Prices::default();
    for (key, value) in all {
        let price = match &value {
            Value::Number(number) => parse(&number.to_string()),
            Value::String(text) => parse(text),
            _ => None,
        };
        match price {
            Some(price) => drop(prices.told.insert(key, price)),
            None => drop(prices.unclear.insert(key)),
        }
    }
    Ok(prices)
}

/// Each node's price, by its instance type and, where they are told, zone and capacity type. Of several nodes the mean.
fn from_metrics(text: &str) -> Result<Prices, String> {
    let mut prices = Prices::default();
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| line.starts_with(METRIC)) {
        let Some((labels, rest)) =
            line[METRIC.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'))
        else {
            continue;
        };
        let labels = labels_of(labels);
        let Some(instance_type) = labels.get("instance_type") else { continue };
        let mut key = instance_type.clone();
        for label in ["zone", "capacity_type"] {
            let Some(value) = labels.get(label).filter(|value| !value.is_empty()) else { break };
            key.push('/');
            key.push_str(value);
        }
        match rest.split_whitespace().next().and_then(parse) {
            Some(value) => {
                let (sum, count) = sums.entry(key).or_default();
                *sum += value;
                *count += 1.0;
            }
            None => {
                prices.unclear.insert(key);
            }
        }
    }
    if sums.is_empty() && prices.unclear.is_empty() {
        return Err(format!("it answers neither with a JSON object nor with the metric {METRIC}"));
    }
    for (key, (sum, count)) in sums {
        let mean = sum / count;
        if mean.is_finite() {
            prices.told.insert(key, mean);
        } else {
            prices.unclear.insert(key);
        }
    }
    Ok(prices)
}

/// `a="b",c="d"`, as exporters write it; escapes stay as they are, for no name of a type has any.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once("=\"") {
        let Some((value, after)) = after.split_once('"') else { break };
        labels.insert(key.trim_matches([',', ' ']).to_owned(), value.to_owned());
        rest = after;
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_from_json_by_the_keys_of_the_table() {
        let told = read(r#" {"large": 0.4, "small/a": "0.15"}"#).expect("prices").told;
        assert_eq!(told, BTreeMap::from([("large".to_owned(), 0.4), ("small/a".to_owned(), 0.15)]));
    }

    #[test]
    fn what_is_no_price_in_json_is_named_by_its_key_and_the_others_are_believed() {
        let prices = read(r#"{"large": 0.4, "odd": -1, "list": [1], "much": "a lot", "small": "0.1"}"#);
        let prices = prices.expect("prices");
        assert_eq!(prices.told, BTreeMap::from([("large".to_owned(), 0.4), ("small".to_owned(), 0.1)]));
        assert_eq!(prices.unclear, ["list", "much", "odd"].map(str::to_owned).into());
    }

    #[test]
    fn prices_are_read_from_what_exporters_serve() {
        let told = read(concat!(
            "# HELP node_total_hourly_cost what a node costs\n",
            "node_total_hourly_cost{arch=\"amd64\",instance=\"n1\",instance_type=\"large\"} 0.3\n",
            "node_total_hourly_cost{instance=\"n2\",instance_type=\"large\"} 0.5\n",
            "node_total_hourly_cost{instance_type=\"small\",zone=\"a\",capacity_type=\"spot\"} 0.05 1700000000\n",
            "node_total_hourly_cost{instance=\"n4\"} 9\n",
            "node_cpu_hourly_cost{instance_type=\"large\"} 0.03\n",
        ))
        .expect("prices");
        let expected = BTreeMap::from([("large".to_owned(), 0.4), ("small/a/spot".to_owned(), 0.05)]);
        assert_eq!(told, Prices { told: expected, ..Prices::default() });
    }

    #[test]
    fn what_an_exporter_says_that_is_no_price_is_named_by_its_key() {
        let told = read(concat!(
            "node_total_hourly_cost{instance=\"n1\",instance_type=\"large\"} 0.3\n",
            "node_total_hourly_cost{instance=\"n2\",instance_type=\"large\"} NaN\n",
            "node_total_hourly_cost{instance_type=\"small\",zone=\"a\"} +Inf\n",
            "node_total_hourly_cost{instance=\"n4\",instance_type=\"huge\"} 1.7e308\n",
            "node_total_hourly_cost{instance=\"n5\",instance_type=\"huge\"} 1.7e308\n",
            "node_total_hourly_cost{instance_type=\"fine\"} 0.1\n",
        ))
        .expect("prices");
        assert_eq!(told.told, BTreeMap::from([("fine".to_owned(), 0.1), ("large".to_owned(), 0.3)]));
        assert_eq!(told.unclear, ["huge", "large", "small/a"].map(str::to_owned).into());
        let none = read("node_total_hourly_cost{instance_type=\"large\"} NaN\n").expect("an answer");
        assert_eq!((none.told.len(), none.unclear.len()), (0, 1));
    }

    /// An endpoint that answers once, and its address.
    async fn endpoint(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.expect("a request"));
            }
            stream.write_all(answer.as_bytes()).await.expect("an answer");
            String::from_utf8_lossy(&asked).lines().next().unwrap_or_default().to_owned()
        });
        (format!("http://{address}"), serving)
    }

    #[tokio::test]
    async fn an_endpoint_is_asked_for_its_path_and_query() {
        let (url, serving) = endpoint("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"large\": 1}").await;
        let told = over_http()(format!("{url}/prices?of=all")).await.expect("a text");
        assert_eq!(serving.await.expect("it ends"), "GET /prices?of=all HTTP/1.1");
        assert_eq!(read(&told).expect("prices").told["large"], 1.0);
    }

    #[tokio::test]
    async fn an_endpoint_that_refuses_or_is_not_there_is_told_of() {
        let (url, serving) = endpoint("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(over_http()(url.clone()).await, Err("it answers 403 Forbidden".to_owned()));
        serving.await.expect("it ends");
        over_http()(url).await.expect_err("nobody listens any more");
        let error = over_http()("no url at all".to_owned()).await.expect_err("no URL");
        assert!(error.starts_with("this is no URL"), "{error}");
    }

    #[test]
    fn what_holds_no_prices_is_said_to_hold_none() {
        for (text, problem) in [("<html>", "neither with a JSON object"), ("{\"large\": ", "broken JSON")] {
            let error = read(text).expect_err("no prices");
            assert!(error.contains(problem), "{error}");
        }
    }
}
