//! Profiles from callgrind's files: instructions by location.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// Instructions by file and function.
pub(crate) type Places = HashMap<String, f64>;

/// Returns true if valgrind is installed.
pub(crate) fn is_valgrind_installed() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Returns the command that runs this program under callgrind, with further options of callgrind.
pub(crate) fn counted(file: &Path, options: &[&str]) -> Result<Command, Error> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--tool=callgrind"]).args(options);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(std::env::current_exe()?);
    Ok(valgrind)
}

/// Returns the total of one of callgrind's files.
pub(crate) fn total(counts: &str) -> Result<f64, Error> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.ok_or("callgrind wrote no totals")?.trim().parse()?)
}

/// Returns the instructions of a callgrind file by file and function, as `callgrind_annotate` reports them.
pub(crate) fn by_place(counts: &Path) -> Result<Places, Error> {
    let out = Command::new("callgrind_annotate")
        .args(["--threshold=100", "--show-percs=no", "--auto=no"])
        .arg(counts)
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

/// Prints the instructions per call from the difference of two runs: by the crate of the source, and by the
/// function of the binary.
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
        // Format `file:function [object]`. A function's name contains colons.
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

/// Returns the crate of a file: from the registry, the standard library or the workspace.
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
