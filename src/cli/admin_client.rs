//! How commands ask a running gateway: over its admin listener.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::header::CONTENT_TYPE;
use reqwest::Method;
use serde_json::Value;

use crate::config::{self, ProcessEnvironment};

/// Where the gateway is.
#[derive(Debug, Args, Clone)]
pub struct AdminArgs {
    /// capgate.toml of the gateway, for its admin address and token
    #[arg(long, value_name = "FILE", env = "CAPGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Address of the admin listener, instead of the one in the configuration: http://HOST:PORT
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
}

/// Why the gateway gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The configuration cannot be read.
    #[error("{0}")]
    Config(String),
    /// Nobody there, or not a gateway.
    #[error("no gateway answers at {0}")]
    Unreachable(String),
    /// It answered with an error.
    #[error("the gateway answered {status}: {detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        detail: String,
    },
}

/// Longest wait for an answer: a little more than the gateway itself takes.
const PATIENCE: Duration = Duration::from_secs(65);

impl AdminArgs {
    /// GET of a path below the admin listener.
    pub async fn get(&self, path: &str) -> Result<Value, AskError> {
        self.ask(Method::GET, path, None).await
    }

    /// POST to a path below the admin listener, with a JSON body or with none.
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, AskError> {
        self.ask(Method::POST, path, body).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, AskError> {
        let config =
            config::load(self.config.as_deref(), &ProcessEnvironment).map_err(|p| AskError::Config(p.to_string()))?;
        let base = match &self.admin {
            Some(url) if url.contains("://") => url.clone(),
            Some(host) => format!("http://{host}"),
            None => format!("http://{}", config.admin.listen),
        };
        let unreachable = || AskError::Unreachable(base.clone());
        let client = crate::forward::plain_client(PATIENCE).map_err(|_| unreachable())?;
        let mut request = client.request(method, format!("{}{path}", base.trim_end_matches('/')));
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        if let Some(token) = &config.admin.token {
            request = request.bearer_auth(token.expose());
        }
        let answer = request.send().await.map_err(|_| unreachable())?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|_| unreachable())?;
        let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status != 200 {
            let mut detail = value["detail"].as_str().unwrap_or("no detail").to_owned();
            let problems = value["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
            for problem in problems.iter().filter_map(|problem| problem["problem"].as_str()) {
                detail = format!("{detail}\n  {problem}");
            }
            return Err(AskError::Refused { status, detail });
        }
        Ok(value)
    }
}
