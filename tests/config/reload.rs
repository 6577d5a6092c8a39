//! The routing file over time.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use capgate::config::{self, Config, FileWatch, Reload, RoutingFile};

use crate::support::{Folder, Vars, with_buyer};

fn config_for(folder: &Folder) -> Config {
    let path = folder.write("capgate.toml", "[routing]\nfile = \"routing.toml\"\n");
    config::load(Some(&path), &Vars::default()).expect("good")
}

/// Gives the file a modification time, in milliseconds since the epoch.
fn touch(path: &Path, ms: u64) {
    let file = File::options().write(true).open(path).expect("the file");
    file.set_modified(UNIX_EPOCH + Duration::from_millis(ms)).expect("a new time");
}

#[test]
fn the_version_is_the_modification_time_unless_given() {
    let folder = Folder::new();
    let path = folder.write("routing.toml", &with_buyer(""));
    touch(&path, 1_700_000_000_123);
    let (_, routing, _) = RoutingFile::open(&config_for(&folder), &Vars::default()).expect("good");
    assert_eq!(routing.version, 1_700_000_000_123);
    folder.write("routing.toml", &format!("version = 12\n{}", with_buyer("")));
    let (_, routing, _) = RoutingFile::open(&config_for(&folder), &Vars::default()).expect("good");
    assert_eq!(routing.version, 12);
}

#[test]
fn a_missing_file_is_an_error_unless_nobody_named_it() {
    let folder = Folder::new();
    let mut config = config_for(&folder);
    assert!(RoutingFile::open(&config, &Vars::default()).is_err());
    config.is_routing_optional = true;
    let (mut file, routing, warnings) = RoutingFile::open(&config, &Vars::default()).expect("empty");
    assert!(routing.version == 0 && routing.campaigns.is_empty() && warnings.len() == 1);
    assert!(file.reload(&Vars::default()).is_err(), "still missing");
    folder.write("routing.toml", &with_buyer(""));
    assert!(matches!(file.reload(&Vars::default()), Ok(Reload::Changed { routing, .. }) if routing.buyers.len() == 1));
}

#[test]
fn f87_a_bad_file_changes_nothing_and_the_next_good_one_is_taken() {
    let folder = Folder::new();
    let good = format!("version = 1\n{}", with_buyer("cap = [{ window = \"day\", leads = 5 }]"));
    folder.write("routing.toml", &good);
    let (mut file, _, _) = RoutingFile::open(&config_for(&folder), &Vars::default()).expect("good");
    let newer = good.replace("version = 1", "version = 2");
    let half = &newer[..newer.len() / 2];
    for (name, text) in [
        ("broken", "version = 2\n[[buyer"),
        ("half-written", half),
        ("empty", ""),
        ("only comments", "# nothing\n"),
        ("missing buyer", &newer.replace("id = \"sunco\"", "id = \"other\"")),
        ("negative cap", &newer.replace("leads = 5", "leads = -5")),
        ("duplicate buyer", &format!("{newer}[[buyer]]\nid = \"sunco\"\nurl = \"https://x.example\"\n")),
        ("unknown key", &newer.replace("leads = 5", "leads = 5, lead = 6")),
    ] {
        folder.write("routing.toml", text);
        assert!(file.reload(&Vars::default()).is_err(), "{name} was taken");
    }
    folder.write("routing.toml", &newer);
    assert!(matches!(file.reload(&Vars::default()), Ok(Reload::Changed { routing, .. }) if routing.version == 2));
}

#[test]
fn f86_a_version_that_does_not_rise_is_refused() {
    let folder = Folder::new();
    let path = folder.write("routing.toml", &format!("version = 7\n{}", with_buyer("")));
    let (mut file, _, _) = RoutingFile::open(&config_for(&folder), &Vars::default()).expect("good");
    assert!(matches!(file.reload(&Vars::default()), Ok(Reload::Unchanged)));
    for version in [7, 6] {
        folder.write("routing.toml", &format!("version = {version}\n{}", with_buyer("paused = true")));
        let problems = file.reload(&Vars::default()).expect_err("does not rise");
        assert!(problems.to_string().contains("does not rise above 7"), "{problems}");
    }
    folder.write("routing.toml", &with_buyer(""));
    touch(&path, 1_700_000_000_000);
    assert!(matches!(file.reload(&Vars::default()), Ok(Reload::Changed { .. })));
    // The same text with a newer time is read again: a secret behind it may have changed.
    touch(&path, 1_700_000_000_001);
    assert!(matches!(file.reload(&Vars::default()), Ok(Reload::Changed { .. })));
    touch(&path, 1_600_000_000_000);
    assert!(file.reload(&Vars::default()).is_err());
}

#[test]
fn f87_the_watch_waits_until_the_file_rests() {
    let folder = Folder::new();
    let path = folder.write("routing.toml", "a");
    touch(&path, 1000);
    let mut watch = FileWatch::new(&path);
    assert!(!watch.has_settled_change());
    for ms in [2000, 3000] {
        touch(&path, ms);
        assert!(!watch.has_settled_change(), "it has only just changed");
    }
    assert!(watch.has_settled_change());
    assert!(!watch.has_settled_change(), "told once");
    std::fs::remove_file(&path).expect("removed");
    assert!(!watch.has_settled_change() && !watch.has_settled_change(), "nothing to read");
    folder.write("routing.toml", "b");
    touch(&path, 4000);
    assert!(!watch.has_settled_change() && watch.has_settled_change());
}
