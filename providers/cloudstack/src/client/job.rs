//! Asynchronous jobs: what a job came to.

use serde_json::Value;

use super::error::{ApiError, ErrorKind};

/// A job as the server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// What it works on, if it says so.
    pub instance_id: Option<String>,
    /// How far it is.
    pub state: JobState,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq)]
pub enum JobState {
    /// It runs, or waits for another job of the same machine.
    Pending,
    /// Done, with this result.
    Succeeded(Value),
    /// Failed or cancelled. After a crash of the server there is no reason, only the fact.
    Failed(ApiError),
}

impl Job {
    /// From the answer to `queryAsyncJobResult`.
    pub(crate) fn from_answer(answer: &Value) -> Result<Self, ApiError> {
        let text = |key: &str| answer[key].as_str().map(str::to_owned);
        let malformed = |what: &str| {
            ApiError::new(COMMAND, ErrorKind::Internal, format!("the server's answer has no {what}"))
        };
        let id = text("jobid").ok_or_else(|| malformed("jobid"))?;
        let status = answer["jobstatus"].as_i64().ok_or_else(|| malformed("jobstatus"))?;
        let state = match status {
            0 => JobState::Pending,
            1 => JobState::Succeeded(answer["jobresult"].clone()),
            _ => JobState::Failed(failure(answer)),
        };
        Ok(Self { id, instance_id: text("jobinstanceid"), state })
    }
}

const COMMAND: &str = "queryAsyncJobResult";

fn failure(answer: &Value) -> ApiError {
    let result = &answer["jobresult"];
    if result["errorcode"].is_u64() {
        return ApiError::answered(COMMAND, 530, result);
    }
    let why = "the job ended without a result: the server was restarted, or the job was cancelled";
    ApiError::new(COMMAND, ErrorKind::Internal, why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::error::CapacityKind;
    use super::*;

    #[test]
    fn a_job_without_a_result_has_failed_for_no_known_reason() {
        let job =
            Job::from_answer(&json!({"jobid": "j", "jobstatus": 2, "jobresultcode": 530})).expect("a job");
        let JobState::Failed(error) = job.state else { panic!("failed") };
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.text.contains("restarted"));
    }

    #[test]
    fn a_failed_job_is_sorted_like_a_failed_call() {
        let answer = json!({"jobid": "j", "jobstatus": 2, "jobresult": {"errorcode": 533, "errortext": "No destination found"}});
        let JobState::Failed(error) = Job::from_answer(&answer).expect("a job").state else {
            panic!("failed")
        };
        assert_eq!(error.kind, ErrorKind::Capacity(CapacityKind::Hosts));
        assert!(Job::from_answer(&json!({})).is_err());
    }
}
