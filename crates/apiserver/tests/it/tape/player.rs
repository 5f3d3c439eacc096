//! Sends the steps of a chapter, one after the other, to whatever a `kube::Client` reaches, and keeps the raw answers.
//!
//! The same code drives our server in process under paused time and a real one over HTTPS: every wait is on tokio's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BytesMut;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use super::chapter::{Answer, Chapter, Collect, Step};

/// How long a controller may take, and a watch may stay silent, before the step is answered with what there is.
const PATIENCE: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// The answers of one run of one chapter, in the order of its steps, as they came.
pub(crate) async fn play(client: &Client, chapter: &Chapter) -> Vec<Answer> {
    let mut player = Player { client: client.clone(), variables: BTreeMap::new(), watches: BTreeMap::new() };
    let mut answers = Vec::with_capacity(chapter.steps.len());
    for step in &chapter.steps {
        let answer = player.step(step).await.unwrap_or_else(Answer::broken);
        player.capture(step, &answer);
        answers.push(answer);
    }
    answers
}

struct Player {
    client: Client,
    variables: BTreeMap<String, String>,
    watches: BTreeMap<String, Lines>,
}

impl Player {
    async fn step(&mut self, step: &Step) -> Result<Answer, String> {
        if let Some(collect) = &step.collect {
            return self.collect(collect).await;
        }
        let Some(until) = &step.until else { return self.request(step).await };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.request(step).await?;
            let status_holds = until.status.is_none_or(|status| status == answer.status);
            let value_holds =
                until.pointer.as_deref().is_none_or(|p| answer.body.pointer(p) == until.equals.as_ref());
            if (status_holds && value_holds) || tokio::time::Instant::now() > deadline {
                return Ok(answer);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn request(&mut self, step: &Step) -> Result<Answer, String> {
        let request = self.build(step)?;
        // Any value but these asks for a watch.
        let is_watch = request.uri().query().is_some_and(|query| {
            query
                .split('&')
                .filter_map(|pair| pair.strip_prefix("watch="))
                .any(|value| value != "false" && value != "0")
        });
        let response =
            self.client.send(request).await.map_err(|error| format!("no answer: {}", chain(&error)))?;
        let status = response.status().as_u16();
        let headers = headers_of_interest(&response);
        let mut answer = Answer { status, headers, body: Value::Null, events: None };
        if let Some(name) = &step.opens {
            self.watches.insert(name.clone(), Lines::new(response));
            return Ok(answer);
        }
        if is_watch && status == 200 {
            answer.events = Some(Lines::new(response).take(None).await?);
            return Ok(answer);
        }
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|error| format!("body: {}", chain(&error)))?
            .to_bytes();
        answer.body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Ok(answer)
    }

    fn build(&self, step: &Step) -> Result<Request<Body>, String> {
        let path = self.substitute(step.path.as_deref().ok_or("step has neither path nor collect")?);
        let method = step.method.as_deref().unwrap_or("GET");
        let body = match (&step.body, &step.text) {
            (Some(value), _) => Some(value.to_string()),
            (None, text) => text.clone(),
        };
        let body = body.map(|text| {
            let text = self.substitute(&text);
            match &step.filler {
                Some(filler) => text.replace("{{filler}}", &filler.text.repeat(filler.times)),
                None => text,
            }
        });
        let mut request = Request::builder().method(method).uri(path);
        let given = |name: &str| step.headers.keys().any(|key| key.eq_ignore_ascii_case(name));
        if !given("accept") {
            request = request.header("Accept", "application/json");
        }
        if body.is_some() && !given("content-type") {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in &step.headers {
            request = request.header(name, value);
        }
        let body = body.map(|text| Body::from(text.into_bytes())).unwrap_or_else(Body::empty);
        request.body(body).map_err(|error| format!("request: {error}"))
    }

    async fn collect(&mut self, collect: &Collect) -> Result<Answer, String> {
        let lines = self.watches.get_mut(&collect.watch).ok_or(format!("no watch {}", collect.watch))?;
        let events = lines.take(collect.events).await?;
        Ok(Answer { status: 200, headers: BTreeMap::new(), body: Value::Null, events: Some(events) })
    }

    fn capture(&mut self, step: &Step, answer: &Answer) {
        for (name, pointer) in &step.capture {
            let value = match answer.body.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => format!("{pointer} is missing"),
            };
            self.variables.insert(name.clone(), value);
        }
    }

    fn substitute(&self, text: &str) -> String {
        self.variables
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
    }
}

impl Answer {
    /// Stands in for an answer that never came, so that the step differs instead of ending the run.
    fn broken(why: String) -> Self {
        Self { status: 0, headers: BTreeMap::new(), body: Value::String(why), events: None }
    }
}

fn headers_of_interest(response: &Response<Body>) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for name in ["content-type", "warning", "retry-after"] {
        let values: Vec<_> = response
            .headers()
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        let joined = values.join(", ");
        let plain_json = name == "content-type" && joined == "application/json";
        if !joined.is_empty() && !plain_json {
            kept.insert(name.to_owned(), joined);
        }
    }
    kept
}

/// A watch: a body read line by line.
struct Lines {
    body: Body,
    rest: BytesMut,
}

impl Lines {
    fn new(response: Response<Body>) -> Self {
        Self { body: response.into_body(), rest: BytesMut::new() }
    }

    /// The next `count` events, or all until the stream ends; fewer where it stays silent.
    async fn take(&mut self, count: Option<usize>) -> Result<Vec<Value>, String> {
        let mut events = Vec::new();
        while count.is_none_or(|count| events.len() < count) {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                events.push(serde_json::from_slice(&line).map_err(|error| format!("watch line: {error}"))?);
                continue;
            }
            match tokio::time::timeout(SILENCE, self.body.frame()).await {
                Ok(Some(Ok(frame))) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Ok(Some(Err(error))) => return Err(format!("watch: {}", chain(&error))),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(events)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
