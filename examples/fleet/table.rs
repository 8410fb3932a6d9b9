//! Output: one table per policy, in colour on a terminal.

use std::io::IsTerminal;

use crate::sim::{Act, Fault, Fleet, RATE, Row, Scene};

/// Utilization above which a backend is highlighted.
const TOO_BUSY: f64 = 0.95;

/// Prints the heading and the backends.
pub(crate) fn title(fleet: &Fleet) {
    let capacity: u32 = fleet.0.iter().map(|backend| backend.capacity).sum();
    println!("{}", bold("evenkeel: five unequal backends, one client, virtual time"));
    println!(
        "{RATE} calls/s onto {capacity}/s of capacity; each act is 10 s of traffic, after 15 s to settle\n"
    );
}

/// Prints one policy: a row per backend, a column group per act.
pub(crate) fn scene(scene: &Scene, acts: &[Act]) {
    let fault = match scene.fault {
        Fault::Dies(name) => format!("{name} dies"),
        Fault::Errs(name) => format!("{name} errs"),
        Fault::ZoneDies(zone) => format!("{zone} dies"),
    };
    println!("{}  {}", bold(scene.name), dim(scene.says));
    print!("  {:<8}{:>6}", "backend", "");
    for act in acts {
        let heading = if act.name == "fault" { fault.as_str() } else { act.name };
        print!(" │ {heading:<25}");
    }
    print!("\n  {:<14}", "");
    for _ in acts {
        print!(" │ {:>6} {:>6} {:>10} ", "want", "got", "busy");
    }
    println!();
    for backend in Fleet::unequal().0 {
        print!("  {:<8}{:>4}/s", backend.name, backend.capacity);
        for act in acts {
            match act.rows.get(backend.name) {
                Some(row) => print!(" │ {}", cells(row)),
                None => print!(" │ {:25}", ""),
            }
        }
        println!();
    }
    print!("  {:<14}", "calls");
    for act in acts {
        let failed = act.failed as f64 / act.calls.max(1) as f64;
        let verdict = format!("{} failed, p99 {:.0?}", percent(failed).trim(), act.p99);
        print!(
            " │ {}",
            if failed > 0.001 { red(&format!("{verdict:<25}")) } else { green(&format!("{verdict:<25}")) }
        );
    }
    println!("\n");
}

/// Prints the meaning of the columns.
pub(crate) fn legend() {
    println!(
        "{}",
        dim("want: the share that the policy intends, where it fixes one; got: the share it got;")
    );
    println!("{}", dim("busy: how much of its capacity that is; ! marks a backend that cannot keep up."));
    println!("{}", dim("A call fails if its backend is down, returns an error, or takes more than 500 ms."));
}

fn cells(row: &Row) -> String {
    let want = match (row.want, &row.unused) {
        (_, Some(_)) => "-".to_owned(),
        (Some(want), None) => percent(want),
        (None, None) => "any".to_owned(),
    };
    let filled = (row.utilization * 5.0).round().clamp(0.0, 5.0) as usize;
    let bar: String = "█".repeat(filled) + &"·".repeat(5 - filled);
    let mark = if row.utilization > TOO_BUSY { "!" } else { " " };
    let busy = format!("{bar}{:>4.0}%{mark}", row.utilization.min(9.99) * 100.0);
    let busy = if row.utilization > TOO_BUSY { red(&busy) } else { busy };
    format!("{want:>6} {:>6} {busy}", percent(row.got))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn bold(text: &str) -> String {
    paint("1", text)
}

fn dim(text: &str) -> String {
    paint("2", text)
}

fn red(text: &str) -> String {
    paint("31", text)
}

fn green(text: &str) -> String {
    paint("32", text)
}

fn paint(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
