//! The last look at a drained node: does the server know of pods there that the watch has not brought yet?
//!
//! An instance must not go because a watch lags behind, so the server is asked before. When many nodes are drained at the same
//! time (a workload goes, and with it its nodes), those that wait for an answer share the next question if that is less to read.
//!
//! A pod that cannot be read is there all the same. It keeps its own node, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use karpenter_runtime::clock::Clock;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::store::Store;
use karpenter_runtime::unread::Unread;
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::pods;
use crate::seen_pod::SeenPod;

/// As many pods as a node may have: a list of all pods is not longer than the lists of so many nodes.
const PODS_PER_NODE: usize = 110;

/// How long to wait for others that ask. Nodes that are emptied together are drained within moments of each other.
const GATHER: Duration = Duration::from_millis(250);

/// How long an answer is waited for. One that never comes must not hold up the nodes that ask next.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the server about the pods of nodes.
pub(crate) struct LastLook {
    pods: Api<Unread>,
    /// What the watch has brought.
    known: Store<SeenPod>,
    clock: Arc<dyn Clock>,
    /// Who waits for an answer, by ticket.
    asking: Mutex<Asking>,
    /// Held while the server is asked: what it answered to whom, by ticket, or why it did not.
    answers: tokio::sync::Mutex<BTreeMap<u64, Result<bool, String>>>,
}

#[derive(Default)]
struct Asking {
    next_ticket: u64,
    nodes: BTreeMap<u64, String>,
}

impl LastLook {
    pub(crate) fn new(client: Client, known: Store<SeenPod>, clock: Arc<dyn Clock>) -> Self {
        Self {
            pods: Api::all_with(client, &ApiResource::erase::<Pod>(&())),
            known,
            clock,
            asking: Mutex::default(),
            answers: tokio::sync::Mutex::default(),
        }
    }

    /// Whether the server has pods on this node that must be evicted first. The answer is never older than the question.
    pub(crate) async fn finds_pods_on(&self, node: &str) -> Result<bool, ReconcileError> {
        let ticket = self.asking().take_ticket(node);
        tokio::time::sleep(GATHER).await;
        let mut answers = self.answers.lock().await;
        if let Some(answer) = answers.remove(&ticket) {
            return answer.map_err(ReconcileError::message);
        }
        let asking = std::mem::take(&mut self.asking().nodes);
        let nodes: BTreeSet<&str> = asking.values().map(String::as_str).chain([node]).collect();
        let occupied = self.occupied(&nodes).await;
        let others = asking.iter().filter(|(other, _)| **other != ticket);
        answers.extend(others.map(|(other, name)| {
            let answer = occupied.as_ref().map(|occupied| occupied.contains(name));
            (*other, answer.map_err(ToString::to_string))
        }));
        Ok(occupied?.contains(node))
    }

    fn asking(&self) -> std::sync::MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the nodes that have pods to be evicted.
    async fn occupied(&self, nodes: &BTreeSet<&str>) -> Result<BTreeSet<String>, ReconcileError> {
        let together = nodes.len() > 1 && self.known.len() <= nodes.len() * PODS_PER_NODE;
        let selectors: Vec<String> = if together {
            vec!["spec.nodeName!=".to_owned()]
        } else {
            nodes.iter().map(|node| format!("spec.nodeName={node}")).collect()
        };
        let lists = selectors.iter().map(|selector| async {
            let listed = self.pods.list(&ListParams::default().fields(selector)).await;
            listed.map_err(|error| ReconcileError::from(error).context("listing pods on node"))
        });
        let lists = tokio::time::timeout(PATIENCE, try_join_all(lists)).await.map_err(|_| {
            ReconcileError::message(format!(
                "listing pods on node: no answer within {} s",
                PATIENCE.as_secs()
            ))
        })??;
        let now = self.clock.undoubted_now();
        let mut occupied = BTreeSet::new();
        for listed in lists.iter().flatten() {
            match listed.read::<Pod>() {
                Ok(pod) => {
                    let pod = SeenPod::of(&pod);
                    if pods::is_waiting_eviction(&pod, now) {
                        occupied.extend(pod.node.map(String::from));
                    }
                }
                Err(error) => {
                    let pod = logging::object(&ObjectKey::of(listed));
                    tracing::warn!(Pod = %pod, %error, "pod cannot be read, its node is not let go");
                    if let Some(node) = node_of(listed) {
                        occupied.insert(node);
                    } else {
                        occupied.extend(nodes.iter().map(|node| (*node).to_owned()));
                    }
                }
            }
        }
        Ok(occupied)
    }
}

/// The node of a pod of which nothing else may be readable.
fn node_of(pod: &Unread) -> Option<String> {
    let whole: Value = pod.read().ok()?;
    whole.pointer("/spec/nodeName").and_then(Value::as_str).map(str::to_owned)
}

impl Asking {
    fn take_ticket(&mut self, node: &str) -> u64 {
        self.next_ticket += 1;
        self.nodes.insert(self.next_ticket, node.to_owned());
        self.next_ticket
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use karpenter_runtime::clock::TokioClock;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A server with one pod, on node `b`, that takes a second to answer and notes what it was asked. The
    /// first `in_vain` questions are never answered.
    fn server(asked: &Arc<Mutex<Vec<String>>>, in_vain: usize) -> Client {
        server_with(asked, in_vain, json!([]))
    }

    fn server_with(asked: &Arc<Mutex<Vec<String>>>, in_vain: usize, containers: Value) -> Client {
        let asked = Arc::clone(asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (asked, containers) = (Arc::clone(&asked), containers.clone());
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let pod = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "b", "containers": containers}});
                let found = if query.contains("nodeName%21%3D") || query.ends_with("%3Db") {
                    vec![pod]
                } else {
                    vec![]
                };
                let before = {
                    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
                    asked.push(query);
                    asked.len() - 1
                };
                if before < in_vain {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found});
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_ask_at_the_same_time_share_one_question() {
        let asked = Arc::default();
        let clock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let look = LastLook::new(server(&asked, 0), Store::new(), clock);
        let later = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            look.finds_pods_on("b").await
        };
        let (a, b, c, d) =
            tokio::join!(look.finds_pods_on("a"), look.finds_pods_on("b"), look.finds_pods_on("c"), later);
        let found: Vec<bool> = [a, b, c, d].into_iter().map(|found| found.expect("an answer")).collect();
        assert_eq!(found, [false, true, false, true]);
        let questions = asked.lock().expect("the questions").len();
        assert_eq!(
            questions, 2,
            "one for the three; who asks while it is being answered needs a newer answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_an_error_and_holds_up_nobody_for_long() {
        let asked = Arc::default();
        let clock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let look = LastLook::new(server(&asked, 1), Store::new(), clock);
        let started = tokio::time::Instant::now();
        let (a, b, c, later) =
            tokio::join!(look.finds_pods_on("a"), look.finds_pods_on("b"), look.finds_pods_on("c"), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                look.finds_pods_on("b").await
            });
        for unanswered in [a, b, c] {
            let error = unanswered.expect_err("no answer is not an empty node").to_string();
            assert!(error.contains("no answer within 30 s"), "{error}");
        }
        assert!(later.expect("the next question is asked"));
        assert!(started.elapsed() < Duration::from_secs(35), "those who ask together wait together");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_cannot_be_read_keeps_its_own_node_and_no_other() {
        let clock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let look = LastLook::new(server_with(&Arc::default(), 0, json!("none")), Store::new(), clock);
        let (a, b) = tokio::join!(look.finds_pods_on("a"), look.finds_pods_on("b"));
        assert!(!a.expect("an answer for the other node"));
        assert!(b.expect("an answer"));
    }
}
