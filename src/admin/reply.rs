//! From an operator's results to HTTP. Status codes of the admin API stand in this file and nowhere else.

use http::StatusCode;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use serde_json::Value;

use super::{AdminError, ReadyCheck, ReloadProblem};
use crate::intake::refusal::FieldProblem;
use crate::intake::reply::{json, problem};
use crate::intake::server::Reply;

/// Why an operator's request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Cannot be read; says why.
    Malformed(&'static str),
    /// No token, or not this one.
    Unauthorized,
    /// It comes from a web page, which has no business here.
    FromWebPage,
    /// No such path.
    NotFound,
    /// The path is known, the method is not.
    MethodNotAllowed(&'static str),
    /// The head did not come in time.
    HeadTimeout,
    /// The head is larger than any that is read.
    HeadTooLarge,
    /// The body is larger than anything that is asked for here.
    TooLarge,
    /// The body did not come in time.
    BodyTimeout,
    /// The new routing was refused, or the new certificate.
    InvalidRouting(Vec<ReloadProblem>),
    /// The desk's word.
    Desk(AdminError),
    /// The desk did not answer in time; what was asked for goes on.
    TooSlow,
}

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Self {
        Self::Desk(error)
    }
}

/// 200 with a value.
pub(super) fn done(value: &Value) -> Reply {
    json(StatusCode::OK, value.to_string().into())
}

/// 200 with text.
pub(super) fn text(content_type: &'static str, text: String) -> Reply {
    with(json(StatusCode::OK, text.into()), CONTENT_TYPE, HeaderValue::from_static(content_type))
}

#[derive(Serialize)]
struct Readiness<'a> {
    ready: bool,
    checks: &'a [ReadyCheck],
}

/// 200 when every deciding check holds, else 503; no checks at all prove nothing.
pub(super) fn readiness(checks: &[ReadyCheck]) -> Reply {
    let ready = !checks.is_empty() && checks.iter().all(|check| check.ok || !check.decides);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Cannot fail because the checks hold only strings and booleans.
    json(status, serde_json::to_vec(&Readiness { ready, checks }).unwrap_or_default().into())
}

/// The one table from refusals to HTTP.
pub(super) fn refused(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::Malformed(detail) => problem(StatusCode::BAD_REQUEST, "malformed", detail, &[]),
        Refusal::Unauthorized => with(
            problem(StatusCode::UNAUTHORIZED, "unauthorized", "send the admin token as a bearer token", &[]),
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer"),
        ),
        Refusal::FromWebPage => problem(StatusCode::FORBIDDEN, "forbidden", "web pages may not call this", &[]),
        Refusal::NotFound => problem(StatusCode::NOT_FOUND, "not_found", "there is no such path", &[]),
        Refusal::Desk(AdminError::NotFound(missing)) => {
            problem(StatusCode::NOT_FOUND, "not_found", &missing.to_string(), &[])
        }
        Refusal::MethodNotAllowed(allowed) => with(
            problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path does not take this method", &[]),
            ALLOW,
            HeaderValue::from_static(allowed),
        ),
        Refusal::TooLarge => problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large", &[]),
        Refusal::HeadTimeout => {
            problem(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the head did not come in time", &[])
        }
        Refusal::HeadTooLarge => {
            let detail = "the head is too large or has too many fields";
            problem(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", detail, &[])
        }
        Refusal::BodyTimeout => {
            problem(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the body did not come in time", &[])
        }
        Refusal::InvalidRouting(problems) => {
            let errors: Vec<_> = problems.iter().map(|it| FieldProblem::new(it.part, &it.line)).collect();
            let is_routing = problems.iter().any(|problem| problem.part == "routing");
            let detail = if is_routing {
                "the routing was refused; the one before stays in force"
            } else {
                "the certificate was refused; the one before stays in force, the routing is the one in the file"
            };
            problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid_routing", detail, &errors)
        }
        Refusal::Desk(AdminError::Conflict(detail)) => problem(StatusCode::CONFLICT, "conflict", detail, &[]),
        Refusal::Desk(AdminError::Unavailable(detail)) => unavailable(detail),
        Refusal::TooSlow => unavailable("no answer in time; it may still happen"),
        Refusal::Desk(AdminError::NotAvailableYet) => {
            problem(StatusCode::NOT_IMPLEMENTED, "not_available", "this gateway cannot do that", &[])
        }
    }
}

fn unavailable(detail: &str) -> Reply {
    let reply = problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail, &[]);
    with(reply, RETRY_AFTER, HeaderValue::from(1_u64))
}

fn with(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    reply.headers_mut().insert(name, value);
    reply
}
