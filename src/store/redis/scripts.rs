//! The Lua scripts: one verb, one file under `scripts/redis/`, each with its full signature in its header.

const PRELUDE: &str = include_str!("../../../scripts/redis/prelude.lua");
const ENDING: &str = include_str!("../../../scripts/redis/ending.lua");
const TAIL: &str = include_str!("../../../scripts/redis/tail.lua");
const PARTS: &str = include_str!("../../../scripts/redis/parts.lua");

/// Which connection a call uses: reads of settlement and recovery must not stand in the way of leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Leads on their walk.
    Hot,
    /// Everything else; larger replies, a longer time-out.
    Bulk,
}

/// A script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "the header of each file says what it does")]
pub(super) enum Verb {
    Admit,
    Take,
    AdmitTake,
    Commit,
    Confirm,
    CommitClose,
    Refund,
    Expire,
    Doubt,
    GiveBack,
    Record,
    Remember,
    Return,
    Close,
    Seed,
    Reconcile,
    Life,
    BeginLife,
    OpenLife,
    RestateLead,
    RestateClose,
    RestateLease,
    RestateEnd,
    RestateVersions,
    ForgetLease,
    BringBack,
    NewKey,
    ReadBack,
    BringPersons,
    Marked,
    Person,
    ClaimLeads,
    Park,
    Overdue,
    Read,
    Tip,
    Trim,
}

impl Verb {
    /// All, in the order of their numbers.
    pub(super) const ALL: [Self; 37] = [
        Self::Admit,
        Self::Take,
        Self::AdmitTake,
        Self::Commit,
        Self::Confirm,
        Self::CommitClose,
        Self::Refund,
        Self::Expire,
        Self::Doubt,
        Self::GiveBack,
        Self::Record,
        Self::Remember,
        Self::Return,
        Self::Close,
        Self::Seed,
        Self::Reconcile,
        Self::Life,
        Self::BeginLife,
        Self::OpenLife,
        Self::RestateLead,
        Self::RestateClose,
        Self::RestateLease,
        Self::RestateEnd,
        Self::RestateVersions,
        Self::ForgetLease,
        Self::BringBack,
        Self::NewKey,
        Self::ReadBack,
        Self::BringPersons,
        Self::Marked,
        Self::Person,
        Self::ClaimLeads,
        Self::Park,
        Self::Overdue,
        Self::Read,
        Self::Tip,
        Self::Trim,
    ];

    fn file(self) -> &'static str {
        macro_rules! lua {
            ($name:literal) => {
                include_str!(concat!("../../../scripts/redis/", $name, ".lua"))
            };
        }
        match self {
            Self::Admit => lua!("admit"),
            Self::Take => lua!("take"),
            Self::AdmitTake => lua!("admit_take"),
            Self::Commit => lua!("commit"),
            Self::Confirm => lua!("confirm"),
            Self::CommitClose => lua!("commit_close"),
            Self::Refund => lua!("refund"),
            Self::Expire => lua!("expire"),
            Self::Doubt => lua!("doubt"),
            Self::GiveBack => lua!("give_back"),
            Self::Record => lua!("record"),
            Self::Remember => lua!("remember"),
            Self::Return => lua!("return"),
            Self::Close => lua!("close"),
            Self::Seed => lua!("seed"),
            Self::Reconcile => lua!("reconcile"),
            Self::Life => lua!("life"),
            Self::BeginLife => lua!("begin_life"),
            Self::OpenLife => lua!("open_life"),
            Self::RestateLead => lua!("restate_lead"),
            Self::RestateClose => lua!("restate_close"),
            Self::RestateLease => lua!("restate_lease"),
            Self::RestateEnd => lua!("restate_end"),
            Self::RestateVersions => lua!("restate_versions"),
            Self::ForgetLease => lua!("forget_lease"),
            Self::BringBack => lua!("bring_back"),
            Self::NewKey => lua!("new_key"),
            Self::ReadBack => lua!("read_back"),
            Self::BringPersons => lua!("bring_persons"),
            Self::Marked => lua!("marked"),
            Self::Person => lua!("person"),
            Self::ClaimLeads => lua!("claim_leads"),
            Self::Park => lua!("park"),
            Self::Overdue => lua!("overdue"),
            Self::Read => lua!("read"),
            Self::Tip => lua!("tip"),
            Self::Trim => lua!("trim"),
        }
    }

    /// Which connection runs it.
    pub(super) fn lane(self) -> Lane {
        match self {
            Self::Admit
            | Self::Take
            | Self::AdmitTake
            | Self::Commit
            | Self::Confirm
            | Self::CommitClose
            | Self::Refund
            | Self::Expire
            | Self::Doubt
            | Self::GiveBack
            | Self::Record
            | Self::Remember
            | Self::Park
            | Self::Return
            | Self::NewKey
            | Self::BringPersons
            | Self::Person
            | Self::Close => Lane::Hot,
            Self::Seed
            | Self::Reconcile
            | Self::Life
            | Self::BeginLife
            | Self::OpenLife
            | Self::RestateLead
            | Self::RestateClose
            | Self::RestateLease
            | Self::RestateEnd
            | Self::RestateVersions
            | Self::ForgetLease
            | Self::BringBack
            | Self::ReadBack
            | Self::Marked
            | Self::ClaimLeads
            | Self::Overdue
            | Self::Read
            | Self::Tip
            | Self::Trim => Lane::Bulk,
        }
    }

    /// The text that the server runs: the file's first line (its flags), the shared parts, the rest of the file.
    pub(super) fn source(self) -> String {
        let (flags, body) = split(self.file());
        let mut text = format!("{flags}\n{PRELUDE}");
        match self {
            Self::Commit | Self::Confirm | Self::Refund | Self::Expire | Self::Doubt => text.push_str(ENDING),
            Self::Seed | Self::Reconcile => text.push_str(TAIL),
            Self::AdmitTake => {
                wrap(&mut text, "admit", Self::Admit);
                wrap(&mut text, "take", Self::Take);
                text.push_str(PARTS);
            }
            Self::CommitClose => {
                text.push_str(ENDING);
                wrap(&mut text, "commit", Self::Commit);
                wrap(&mut text, "close", Self::Close);
                text.push_str(PARTS);
            }
            _ => {}
        }
        text.push_str(body);
        text
    }
}

fn split(file: &'static str) -> (&'static str, &'static str) {
    // Cannot fail because every script has more than one line; a test compiles all of them.
    file.split_once('\n').unwrap_or((file, ""))
}

/// A verb's body as a function of its keys and arguments, so that two verbs can share one step without a second copy.
fn wrap(text: &mut String, name: &str, verb: Verb) {
    let (_, body) = split(verb.file());
    text.push_str("local function ");
    text.push_str(name);
    text.push_str("(KEYS, ARGV)\n");
    text.push_str(body);
    text.push_str("end\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_starts_with_its_flags_and_only_what_ends_something_may_run_out_of_memory() {
        for verb in Verb::ALL {
            let source = verb.source();
            let flags = source.lines().next().unwrap();
            let expected = match verb {
                Verb::Admit
                | Verb::Take
                | Verb::AdmitTake
                | Verb::Seed
                | Verb::NewKey
                | Verb::BringPersons
                | Verb::Marked => "#!lua",
                Verb::Overdue | Verb::Tip | Verb::Life | Verb::Read | Verb::Person => "#!lua flags=no-writes",
                _ => "#!lua flags=allow-oom",
            };
            assert_eq!(flags, expected, "{verb:?}");
        }
    }
}
