//! Counting the instructions of a process of this program, with callgrind.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use crate::Error;

/// The place for callgrind's files: one count at a time.
pub(crate) struct Callgrind {
    directory: tempfile::TempDir,
}

/// Instructions by file and function.
pub(crate) type Places = HashMap<String, f64>;

impl Callgrind {
    pub(crate) fn new() -> Result<Callgrind, Error> {
        Ok(Callgrind { directory: tempfile::tempdir()? })
    }

    pub(crate) fn is_installed() -> bool {
        Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success())
    }

    /// This program, its instructions counted.
    pub(crate) fn command(&self) -> Result<Command, Error> {
        let mut valgrind = Command::new("valgrind");
        valgrind.arg("-q").arg("--tool=callgrind");
        valgrind.arg(format!("--callgrind-out-file={}", self.counts().display()));
        valgrind.arg(std::env::current_exe()?);
        Ok(valgrind)
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("callgrind.out")
    }

    /// The instructions of the last run, of all its threads.
    pub(crate) fn instructions(&self) -> Result<f64, Error> {
        let counts = std::fs::read_to_string(self.counts())?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.ok_or("callgrind wrote no totals")?.trim().parse()?)
    }

    /// The instructions of the last run by file and function, as callgrind's own tool reads them.
    pub(crate) fn by_place(&self) -> Result<Places, Error> {
        let out = Command::new("callgrind_annotate")
            .args(["--threshold=100", "--show-percs=no", "--auto=no"])
            .arg(self.counts())
            .output()?;
        let mut places = HashMap::new();
        for line in String::from_utf8(out.stdout)?.lines() {
            let Some((count, name)) = line.trim().split_once("  ") else { continue };
            if let Ok(count) = count.replace(',', "").parse::<f64>() {
                *places.entry(name.to_owned()).or_default() += count;
            }
        }
        places.retain(|name, _| !name.starts_with("PROGRAM TOTALS"));
        if places.is_empty() { Err("callgrind_annotate printed nothing".into()) } else { Ok(places) }
    }
}

/// What a number of calls cost; `instructions` is 0 when nobody counts them.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
    pub(crate) held: f64,
}

impl Cost {
    /// What each of the calls costs by which the two runs differ. What happens once cancels out.
    pub(crate) fn of_each(few: Cost, many: Cost, calls: usize) -> Cost {
        let calls = calls as f64;
        Cost {
            instructions: (many.instructions - few.instructions) / calls,
            allocations: (many.allocations - few.allocations) / calls,
            held: (many.held - few.held) / calls,
        }
    }
}

/// Where a call is spent, of the calls by which two runs differ: by the crate whose source it is, and by the function of
/// the binary that it is in.
pub(crate) fn print_profile(name: &str, few: &Places, many: &Places, calls: usize) {
    let spent = many
        .iter()
        .map(|(place, count)| (place.as_str(), (count - few.get(place).unwrap_or(&0.0)) / calls as f64));
    let spent: Vec<_> = spent.collect();
    print_top(&format!("{name}: by the crate of the source"), 15, &spent, |(file, _)| crate_of(file));
    println!();
    print_top(&format!("{name}: by function"), 40, &spent, |(_, function)| function.to_owned());
}

fn print_top(title: &str, n: usize, spent: &[(&str, f64)], group: impl Fn((&str, &str)) -> String) {
    let mut groups: HashMap<String, f64> = HashMap::new();
    for (place, spent) in spent {
        // `file:function [object]`, and a function's name has colons of its own.
        let place = place.split(" [").next().unwrap_or_default();
        *groups.entry(group(place.split_once(':').unwrap_or(("", place)))).or_default() += spent;
    }
    let all: f64 = groups.values().sum();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("{title}, of {all:.0} instructions per call");
    for (group, spent) in groups.iter().take(n) {
        println!("{spent:>8.0} {:>5.1} %  {group}", 100.0 * spent / all);
    }
}

/// The registry's folder, or the standard library's or the workspace's.
fn crate_of(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').collect();
    let after = |name: &str| Some(parts[parts.iter().position(|part| *part == name)? + 1..].to_vec());
    match (after("src").filter(|_| file.contains("/registry/")), after("library"), after("crates")) {
        (Some(parts), ..) if parts.len() > 1 => parts[1].to_owned(),
        (_, Some(parts), _) | (_, _, Some(parts)) if !parts.is_empty() => parts[0].to_owned(),
        _ if file.contains("malloc") => "libc malloc".to_owned(),
        _ if file.contains("sysdeps") || file.contains("string") => "libc memcpy and the like".to_owned(),
        _ => "other".to_owned(),
    }
}
