//! What an error of the library, or of the server, means for the caller.

use fred::error::{Error, ErrorKind};

use crate::store::StoreError;

/// Server answers that say that nothing happened, by their first word.
const REFUSALS: [&str; 13] = [
    "LOADING",
    "READONLY",
    "OOM",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "TRYAGAIN",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "UNBLOCKED",
];

/// Errors of the library that say that nothing was written.
const UNWRITTEN: [&str; 5] = [
    "Failed to route command",
    "Failed to send command to router",
    "Client is not initialized",
    "Too many failed write attempts",
    "Missing server for hash slot",
];

/// What the library says of a `MOVED` and of an `ASK`, none of which it follows.
const REDIRECTED: &str = "Too many redirections.";

/// Another node has the slot: the call was not run, and may be asked again at once.
pub(super) fn is_redirected(error: &StoreError) -> bool {
    matches!(error, StoreError::NotDone(why) if why == REDIRECTED)
}

/// What an error means for the caller.
pub(super) fn meaning(error: &Error) -> StoreError {
    let text = words(error);
    let details = error.details();
    let first = details.split([' ', ':']).next().unwrap_or_default();
    if REFUSALS.contains(&first) || UNWRITTEN.iter().any(|start| details.starts_with(start)) {
        return StoreError::NotDone(text);
    }
    // The library's task ended with the call in its hands.
    if details == "channel closed" {
        return StoreError::MaybeDone(text);
    }
    match error.kind() {
        ErrorKind::Backpressure | ErrorKind::Auth | ErrorKind::Routing | ErrorKind::Cluster => {
            StoreError::NotDone(text)
        }
        ErrorKind::Timeout | ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Tls => StoreError::MaybeDone(text),
        _ => StoreError::Bug(text),
    }
}

/// The error's text without what a server may quote of the arguments (P9).
pub(super) fn words(error: &Error) -> String {
    let said = error.details().split(", with args beginning with").next().unwrap_or_default();
    // An error of the system comes in Rust's own notation: `Os { code: 111, kind: .., message: "Connection refused" }`.
    let system = said.strip_prefix("Os {").and_then(|rest| rest.split_once("message: \""));
    let said = system.and_then(|(_, message)| message.split('"').next()).unwrap_or(said);
    said.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f19_every_error_has_a_meaning() {
        let meaning_of = |kind, text: &str| meaning(&Error::new(kind, text.to_owned()));
        for refused in [
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "BUSY Redis is busy running a script.",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "MISCONF Redis is configured to save RDB snapshots",
            "Failed to route command.",
        ] {
            assert!(matches!(meaning_of(ErrorKind::Unknown, refused), StoreError::NotDone(_)), "{refused}");
        }
        assert!(matches!(meaning_of(ErrorKind::Backpressure, "full"), StoreError::NotDone(_)));
        assert!(is_redirected(&meaning_of(ErrorKind::Routing, REDIRECTED)));
        assert!(matches!(meaning_of(ErrorKind::Unknown, "channel closed"), StoreError::MaybeDone(_)));
        for kind in [ErrorKind::Timeout, ErrorKind::IO, ErrorKind::Canceled] {
            assert!(matches!(meaning_of(kind, "no reply"), StoreError::MaybeDone(_)));
        }
        assert!(matches!(meaning_of(ErrorKind::InvalidArgument, "WRONGTYPE Operation"), StoreError::Bug(_)));
        assert!(matches!(meaning_of(ErrorKind::Unknown, "BROKEN a counter"), StoreError::Bug(_)));
        assert!(matches!(meaning_of(ErrorKind::Unknown, "ERR Script attempted"), StoreError::Bug(_)));
    }

    #[test]
    fn p9_arguments_that_a_server_quotes_are_left_out() {
        let text = "ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1' 'ann@example.com'";
        let error = meaning(&Error::new(ErrorKind::Unknown, text));
        assert_eq!(error, StoreError::Bug("ERR unknown command 'EVALSHA'".to_owned()));
    }
}
