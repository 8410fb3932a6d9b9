//! CPU utilization that a server reports.
//!
//! Utilization is the used CPU time divided by the available CPU time. Clients weight endpoints by it, so it has to
//! reflect the remaining capacity of the server. Quotas therefore count, and so do other processes on the same cores.
//! [`KernelCounters`] reads the kernel's counters. A server with a better source provides its own [`CpuMeter`]. This
//! module reads no clock: the caller passes the elapsed time.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

/// Source of a server's CPU utilization.
///
/// It is called about once a second, never concurrently, and should return quickly. Reading a few kernel files is
/// fine, a network request is not. A closure is a meter too:
///
/// ```
/// use std::time::Duration;
/// # use evenkeel_orca::cpu::CpuMeter;
/// let mut meter = |_elapsed: Duration| Some(0.25);
/// assert_eq!(meter.utilization(Duration::from_secs(1)), Some(0.25));
/// ```
pub trait CpuMeter: Send + 'static {
    /// Returns used CPU time divided by available CPU time since the last call, which was `elapsed` ago.
    ///
    /// The value is finite and not negative. Above 1 the server used more than its share, as in a burst above a
    /// quota. The first call returns `None` and ignores `elapsed`. `None` also means that the utilization is unknown.
    fn utilization(&mut self, elapsed: Duration) -> Option<f64>;
}

impl<F: FnMut(Duration) -> Option<f64> + Send + 'static> CpuMeter for F {
    fn utilization(&mut self, elapsed: Duration) -> Option<f64> {
        self(elapsed)
    }
}

/// CPU utilization of this process from the kernel's counters.
///
/// | system | used | available |
/// |---|---|---|
/// | Linux, a cgroup v2 quota applies | CPU time of the cgroup with the quota | the quota, but at most used + idle |
/// | Linux otherwise | CPU time of this process | used + idle |
/// | no idle time is counted | as above | as above, with the elapsed time of all CPUs for used + idle |
///
/// - The quota is the lowest `cpu.max` of the process's cgroup and its visible ancestors. Everything in that cgroup
///   shares the quota, so all of it counts as used. Of equal quotas the outermost applies, because more processes
///   share it. A quota may change at any time. cgroup v1 quotas are not read.
/// - Idle is the time in which the CPUs that this process may run on were idle. Other processes on them raise the
///   utilization, idle cores lower it. The kernel counts in steps of 10 ms, so windows far below a second are
///   imprecise.
/// - Idle time is not available on systems other than Linux, and in some sandboxes.
///
/// The utilization is `None` at the first call, when no time was available, and when two samples are not comparable.
/// That is the case if a counter decreased, the quota belongs to another cgroup, or the allowed CPUs changed. The
/// next call measures from that sample. The first read error is logged as a warning that names the file.
#[derive(Debug)]
pub struct KernelCounters {
    /// Root of the kernel's files: `/`, except in tests.
    root: PathBuf,
    last: Option<CpuCounters>,
    warned: bool,
}

impl KernelCounters {
    /// Creates counters without a first sample.
    pub fn new() -> KernelCounters {
        KernelCounters::under("/")
    }

    fn under(root: impl Into<PathBuf>) -> KernelCounters {
        KernelCounters { root: root.into(), last: None, warned: false }
    }

    /// Takes a sample, given the CPU time that this process has used since its start.
    fn sample(&mut self, process: Option<Duration>, elapsed: Duration) -> Option<f64> {
        // Taken first: after a failed sample the next one is only a baseline.
        let last = self.last.take();
        match self.counts(process) {
            Ok(counts) => self.last = Some(counts),
            Err(problem) if !self.warned => {
                self.warned = true;
                tracing::warn!(%problem, "CPU utilization is unavailable");
            }
            Err(_) => {}
        }
        utilization(&last?, self.last.as_ref()?, elapsed)
    }

    fn counts(&self, process: Option<Duration>) -> Result<CpuCounters, String> {
        let quota = self.quota();
        let used = match &quota {
            Some(quota) => group_time(&quota.group)?,
            None => process.ok_or("this system does not report the CPU time of a process")?,
        };
        Ok(CpuCounters { quota, used, idle: self.idle()? })
    }

    /// Returns the lowest quota that applies.
    fn quota(&self) -> Option<CpuQuota> {
        let (mount, own) = self.group()?;
        own.ancestors()
            .filter_map(|group| {
                let group = mount.join(group);
                let cpus = cpu_max(&read(&group.join("cpu.max")).ok()?)?;
                Some(CpuQuota { group, cpus })
            })
            // The tightest limit applies; of equal limits the one that more processes share.
            .reduce(|inner, outer| if outer.cpus <= inner.cpus { outer } else { inner })
    }

    /// Returns the mount point of cgroup v2, and the path of the process's cgroup below it.
    fn group(&self) -> Option<(PathBuf, PathBuf)> {
        // A host that has only cgroup v1 has no line for hierarchy 0.
        let groups = read(&self.root.join("proc/self/cgroup")).ok()?;
        let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
        let mounts = read(&self.root.join("proc/self/mountinfo")).ok()?;
        mounts.lines().filter_map(cgroup2_mount).find_map(|(top, mount)| {
            let below = own.strip_prefix(top).ok()?;
            // `..` leads out of the cgroup namespace, where no mount is visible to this process.
            let visible = !below.components().any(|part| part == Component::ParentDir);
            visible.then(|| (self.root.join(mount.trim_start_matches('/')), below.to_owned()))
        })
    }

    /// Returns the idle time of the CPUs that this process may run on, or `None` if the kernel does not count it.
    fn idle(&self) -> Result<Option<IdleTime>, String> {
        let path = self.root.join("proc/stat");
        if matches!(path.try_exists(), Ok(false)) {
            return Ok(None);
        }
        let stat = read(&path)?;
        let cpus = idle_by_cpu(&stat)
            .ok_or_else(|| format!("{}: expected lines such as `cpu0 1 2 3 4 5`", path.display()))?;
        // Every CPU is idle at least during boot. In gVisor the file exists, but all of its counters are zero.
        if cpus.iter().all(|(_, time)| time.is_zero()) {
            return Ok(None);
        }

        let path = self.root.join("proc/self/status");
        let status = read(&path)?;
        let allowed = status
            .lines()
            .find_map(|line| cpu_list(line.strip_prefix("Cpus_allowed_list:")?))
            .ok_or_else(|| format!("{}: expected a line such as `Cpus_allowed_list: 0-3`", path.display()))?;
        let mut idle = IdleTime { cpus: Vec::new(), time: Duration::ZERO };
        for (cpu, time) in cpus {
            if allowed.iter().any(|range| range.contains(&cpu)) {
                idle.cpus.push(cpu);
                idle.time = idle.time.saturating_add(time);
            }
        }
        if idle.cpus.is_empty() {
            return Err(format!(
                "{}: none of the allowed CPUs is in the kernel's statistics",
                path.display()
            ));
        }
        Ok(Some(idle))
    }
}

impl CpuMeter for KernelCounters {
    fn utilization(&mut self, elapsed: Duration) -> Option<f64> {
        self.sample(process_time(), elapsed)
    }
}

impl Default for KernelCounters {
    fn default() -> KernelCounters {
        KernelCounters::new()
    }
}

/// Kernel counters at one point in time.
#[derive(Debug)]
struct CpuCounters {
    quota: Option<CpuQuota>,
    /// CPU time of the quota's cgroup, or of this process if there is no quota.
    used: Duration,
    idle: Option<IdleTime>,
}

impl CpuCounters {
    /// Returns the cgroup that `used` belongs to, or `None` for this process.
    fn group(&self) -> Option<&Path> {
        self.quota.as_ref().map(|quota| quota.group.as_path())
    }
}

#[derive(Debug)]
struct CpuQuota {
    /// Directory of the cgroup that sets the quota.
    group: PathBuf,
    /// Number of CPUs whose time may be used, above 0.
    cpus: f64,
}

/// Idle time and the CPUs that it was summed over. Sums over different CPUs are not comparable.
#[derive(Debug)]
struct IdleTime {
    cpus: Vec<u32>,
    time: Duration,
}

fn utilization(last: &CpuCounters, counts: &CpuCounters, elapsed: Duration) -> Option<f64> {
    // Counters of different cgroups are not comparable.
    if last.group() != counts.group() {
        return None;
    }
    let used = counts.used.checked_sub(last.used)?.as_secs_f64();
    let elapsed = elapsed.as_secs_f64();
    let attainable = match (&last.idle, &counts.idle) {
        (Some(last), Some(idle)) if last.cpus == idle.cpus => {
            used + idle.time.checked_sub(last.time)?.as_secs_f64()
        }
        (None, None) => elapsed * available_parallelism().ok()?.get() as f64,
        _ => return None,
    };
    let available = match &counts.quota {
        Some(quota) => attainable.min(quota.cpus * elapsed),
        None => attainable,
    };
    (available > 0.0).then(|| used / available)
}

/// Returns the CPU time that this process has used since its start.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"))]
fn process_time() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
fn process_time() -> Option<Duration> {
    None
}

/// Returns the CPU time that all processes of a cgroup have used.
fn group_time(group: &Path) -> Result<Duration, String> {
    let path = group.join("cpu.stat");
    let micros = read(&path)?.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok());
    micros
        .map(Duration::from_micros)
        .ok_or_else(|| format!("{}: expected a line such as `usage_usec 1000`", path.display()))
}

/// Parses `cpu.max` into a number of CPUs. Returns `None` if it sets no limit or is malformed.
fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    // The quota is `max` if there is no limit, which does not parse.
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// Returns the root cgroup and the mount point of a mountinfo line, or `None` if it is not of cgroup v2.
fn cgroup2_mount(line: &str) -> Option<(String, String)> {
    // 36 35 0:31 /top /mount/point rw,relatime shared:1 - cgroup2 cgroup2 rw
    let (mount, filesystem) = line.split_once(" - ")?;
    if filesystem.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3).map(unescape);
    Some((fields.next()?, fields.next()?))
}

/// Reverses the octal escapes of mountinfo. The backslash is replaced last, because digits of the path may follow it.
fn unescape(field: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\043", "#"), (r"\134", r"\")]
        .iter()
        .fold(field.to_owned(), |field, (escaped, plain)| field.replace(escaped, plain))
}

/// Parses the idle time of each CPU from `/proc/stat`. Returns `None` if the text is malformed.
fn idle_by_cpu(stat: &str) -> Option<Vec<(u32, Duration)>> {
    let mut cpus = Vec::new();
    for line in stat.lines() {
        let mut fields = line.split_ascii_whitespace();
        // `cpu` without a number is the sum over all CPUs.
        let name = fields.next().and_then(|name| name.strip_prefix("cpu")).unwrap_or_default();
        let Ok(cpu) = name.parse() else { continue };
        // The fields are user, nice, system, idle, iowait. A CPU whose tasks wait for a disk is available to others.
        // The kernel moves time between idle and iowait, so only their sum is monotonic.
        let mut ticks = fields.skip(3).map(str::parse::<u64>);
        let ticks = ticks.next()?.ok()?.checked_add(ticks.next()?.ok()?)?;
        // A tick is 10 ms in this file: USER_HZ is 100 on every Linux that Rust supports, independent of the kernel's
        // HZ.
        cpus.push((cpu, Duration::from_millis(ticks.checked_mul(10)?)));
    }
    (!cpus.is_empty()).then_some(cpus)
}

/// Parses a list of CPUs such as `0,2-3`. Ranges are not expanded, because a malformed one could cover billions.
fn cpu_list(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    text.trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .collect()
}

/// Reads a kernel file. Names in it (of a process or a mount) may not be UTF-8, and none of them is needed.
fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use testkit::Log;

    use super::*;

    const NO_LIMIT: &str = "max 100000\n";
    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
    const SECOND: Duration = Duration::from_secs(1);

    /// Machine with four CPUs, represented by its kernel files.
    struct Host {
        root: tempfile::TempDir,
        meter: KernelCounters,
    }

    impl Host {
        fn new() -> Host {
            let root = tempfile::tempdir().unwrap();
            let meter = KernelCounters::under(root.path());
            let host = Host { root, meter };
            host.write("proc/self/status", b"Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n");
            host
        }

        /// Creates a host with cgroup v2, whose process is in the cgroup `own`.
        fn in_group(own: &str) -> Host {
            let host = Host::new();
            host.write("proc/self/mountinfo", V2);
            host.own_group(own);
            host
        }

        fn own_group(&self, own: &str) {
            self.write("proc/self/cgroup", format!("0::{own}\n"));
        }

        fn group(&self, dir: &str, max: &str, used_ms: u64) {
            self.write(&format!("sys/fs/cgroup/{dir}/cpu.max"), max);
            let stat = format!("usage_usec {}\nuser_usec 1\nsystem_usec 2\n", used_ms * 1000);
            self.write(&format!("sys/fs/cgroup/{dir}/cpu.stat"), stat);
        }

        fn write(&self, path: &str, content: impl AsRef<[u8]>) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// Takes a sample one second after the last, with the process's CPU time and the idle ticks of each CPU.
        fn sample(&mut self, process_ms: u64, idle: [u64; 4]) -> Option<f64> {
            self.write("proc/stat", stat(idle));
            self.meter.sample(Some(Duration::from_millis(process_ms)), SECOND)
        }
    }

    /// Returns the text of `/proc/stat`. A quarter of each CPU's ticks is iowait.
    fn stat(idle: [u64; 4]) -> String {
        let mut text = "cpu  9 9 9 999999 9 9 9 9 9 9\n".to_owned();
        for (cpu, ticks) in idle.iter().enumerate() {
            writeln!(text, "cpu{cpu} 7 7 7 {} {} 7 7 7 7 7", ticks - ticks / 4, ticks / 4).unwrap();
        }
        text + "intr 1 2 3\nctxt 5\n"
    }

    #[test]
    fn without_a_quota_the_process_counts_against_what_was_idle() {
        // the process used (ms), ticks of 10 ms in which each CPU was idle, the utilization
        let cases = [
            (500, [50, 50, 50, 0], Some(0.25)),
            (500, [0, 0, 50, 0], Some(0.5)),
            // Other processes use all the rest, so no more time is available.
            (500, [0, 0, 0, 0], Some(1.0)),
            (0, [100, 100, 100, 100], Some(0.0)),
            (0, [0, 0, 0, 0], None),
        ];
        for (used, idle, expected) in cases {
            let mut host = Host::new();
            assert_eq!(host.sample(70, [1000, 2000, 3000, 4000]), None, "the first sample");
            let after = [1000 + idle[0], 2000 + idle[1], 3000 + idle[2], 4000 + idle[3]];
            assert_eq!(host.sample(70 + used, after), expected, "{used} ms, {idle:?}");
        }
    }

    #[test]
    fn only_cpus_that_the_process_may_run_on_are_idle_for_it() {
        let cases = [
            ("0,2-3", Some(0.5)),
            ("1", Some(1.0 / 7.0)),
            ("0-4294967295", Some(0.125)),
            (" 2 ", Some(1.0)),
            ("4-7", None),
        ];
        for (allowed, expected) in cases {
            let mut host = Host::new();
            host.write("proc/self/status", format!("Cpus_allowed_list:\t{allowed}\n"));
            host.sample(0, [100; 4]);
            assert_eq!(host.sample(500, [125, 400, 100, 125]), expected, "{allowed}");
        }
    }

    #[test]
    fn idle_time_of_other_cpus_is_not_compared() {
        let mut host = Host::new();
        host.write("proc/self/status", "Cpus_allowed_list:\t0-1\n");
        assert_eq!(host.sample(0, [100; 4]), None);
        host.write("proc/self/status", "Cpus_allowed_list:\t0-2\n");
        assert_eq!(host.sample(500, [200; 4]), None);
        assert_eq!(host.sample(1000, [250; 4]), Some(0.25));
    }

    #[test]
    fn a_quota_of_the_own_cgroup_counts_with_all_that_is_in_it() {
        // quota, CPU time of the cgroup (ms), utilization; the process used 100 ms, and 4 s were idle
        let cases = [
            ("200000 100000\n", 500, Some(0.25)),
            ("50000 100000\n", 125, Some(0.25)),
            ("50000 100000\n", 750, Some(1.5)),
            ("50000 100000\n", 0, Some(0.0)),
            // A quota above the machine's capacity does not add capacity.
            ("6400000 100000\n", 1000, Some(0.2)),
            ("18446744073709551615 1\n", 1000, Some(0.2)),
        ];
        for (max, used, expected) in cases {
            let mut host = Host::in_group("/pod/app");
            host.group("pod/app", max, 3000);
            assert_eq!(host.sample(0, [100; 4]), None);
            host.group("pod/app", max, 3000 + used);
            assert_eq!(host.sample(100, [200; 4]), expected, "{max} {used}");
        }
    }

    #[test]
    fn with_a_quota_a_busy_neighbour_takes_away_as_well() {
        let mut host = Host::in_group("/app");
        host.group("app", "200000 100000", 0);
        host.sample(0, [100; 4]);
        host.group("app", "200000 100000", 500);
        assert_eq!(host.sample(500, [150, 100, 100, 100]), Some(0.5));
    }

    #[test]
    fn the_tightest_quota_counts_and_of_equals_the_outermost() {
        // cpu.max of /, /pod, /pod/app, /pod/app/deep, which have used 800, 400, 200 and 100 ms; the utilization
        let (one, two, four) = ("100000 100000", "200000 100000", "400000 100000");
        let cases = [
            (["", NO_LIMIT, two, NO_LIMIT], 0.1),
            (["", one, two, NO_LIMIT], 0.4),
            (["", two, one, four], 0.2),
            (["", four, two, one], 0.1),
            (["", one, one, one], 0.4),
            ([two, four, NO_LIMIT, NO_LIMIT], 0.4),
        ];
        for (maxes, expected) in cases {
            let mut host = Host::in_group("/pod/app/deep");
            let groups = |host: &Host, used: [u64; 4]| {
                for ((dir, max), used) in
                    ["", "pod", "pod/app", "pod/app/deep"].into_iter().zip(maxes).zip(used)
                {
                    host.group(dir, max, used);
                }
            };
            groups(&host, [1000; 4]);
            host.sample(0, [100; 4]);
            groups(&host, [1800, 1400, 1200, 1100]);
            assert_eq!(host.sample(0, [500; 4]), Some(expected), "{maxes:?}");
        }
    }

    /// With the cgroup, the quota is two CPUs and 500 ms were used. Without it, the process's utilization is 0.5.
    #[test]
    fn the_cgroup_is_found_through_its_mount() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let namespaced = "41 31 0:38 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let other_first = "40 31 0:38 /other /mnt rw - cgroup2 cgroup2 rw\n".to_owned() + V2;
        let blanks =
            r"41 31 0:38 /a\040b /sys/fs/c\040\134040\011\043 rw shared:1 master:2 - cgroup2 none rw";
        let (found, not_found) = (Some(0.25), Some(0.5));
        let cases = [
            (V2, "0::/a/b\n", "sys/fs/cgroup/a/b", found),
            (V2, "0::/a b (x)\n", "sys/fs/cgroup/a b (x)", found),
            (hybrid, "9:name=systemd:/a\n1:cpu:/a\n0::/a\n", "sys/fs/cgroup/unified/a", found),
            (hybrid, "9:name=systemd:/a\n1:cpu:/a\n", "sys/fs/cgroup/unified/a", not_found),
            (namespaced, "0::/a/b/c\n", "sys/fs/cgroup/c", found),
            (namespaced, "0::/a/b/c\n", "sys/fs/cgroup", found),
            (namespaced, "0::/a/b\n", "sys/fs/cgroup", found),
            (namespaced, "0::/a/bc\n", "sys/fs/cgroup/c", not_found),
            (namespaced, "0::/\n", "sys/fs/cgroup", not_found),
            (&other_first, "0::/a\n", "sys/fs/cgroup/a", found),
            (blanks, "0::/a b/c\n", "sys/fs/c \\040\t#/c", found),
            (V2, "0::/../c\n", "sys/fs/c", not_found),
            ("", "0::/a\n", "sys/fs/cgroup/a", not_found),
            ("x - cgroup2", "0::/a\n", "sys/fs/cgroup/a", not_found),
            (V2, "", "sys/fs/cgroup", not_found),
        ];
        for (mountinfo, own, dir, expected) in cases {
            let mut host = Host::new();
            host.write("proc/self/mountinfo", mountinfo);
            host.write("proc/self/cgroup", own);
            host.write("sys/fs/cgroup/cgroup.procs", "");
            host.write(&format!("{dir}/cpu.max"), "200000 100000\n");
            host.write(&format!("{dir}/cpu.stat"), "usage_usec 1000000\n");
            host.sample(0, [100; 4]);
            host.write(&format!("{dir}/cpu.stat"), "usage_usec 1500000\n");
            assert_eq!(host.sample(4000, [200; 4]), expected, "{mountinfo} {own}");
        }
    }

    #[test]
    fn a_quota_may_change_and_come_and_go() {
        let mut host = Host::in_group("/app");
        host.group("app", "200000 100000", 0);
        host.sample(0, [0, 100, 100, 100]);
        host.group("app", "100000 100000", 500);
        assert_eq!(host.sample(500, [100, 200, 200, 200]), Some(0.5));
        host.group("app", NO_LIMIT, 1000);
        assert_eq!(
            host.sample(1000, [200, 300, 300, 300]),
            None,
            "the time of a process is not that of a cgroup"
        );
        host.group("app", NO_LIMIT, 1500);
        assert_eq!(host.sample(2000, [250, 350, 350, 350]), Some(1.0 / 3.0));
        host.group("app", "100000 100000", 2000);
        assert_eq!(host.sample(2000, [300, 400, 400, 400]), None);
        host.group("app", "100000 100000", 2250);
        assert_eq!(host.sample(2000, [400, 500, 500, 500]), Some(0.25));
    }

    #[test]
    fn another_cgroup_is_another_baseline() {
        let mut host = Host::in_group("/blue");
        host.group("blue", "100000 100000", 1000);
        host.group("green", "100000 100000", 5000);
        host.sample(0, [100; 4]);
        host.own_group("/green");
        assert_eq!(host.sample(0, [200; 4]), None);
        host.group("green", "100000 100000", 5500);
        assert_eq!(host.sample(0, [300; 4]), Some(0.5));
    }

    #[test]
    fn counts_that_go_backwards_are_another_baseline() {
        // process ms and idle ticks of the sample that decreases, and of the next one
        let cases = [(900, 300, 1400, 350), (1500, 100, 2000, 150), (0, 10, 500, 60)];
        for (process, idle, then_process, then_idle) in cases {
            let mut host = Host::new();
            host.sample(1000, [200; 4]);
            assert_eq!(host.sample(process, [idle; 4]), None, "{process} {idle}");
            assert_eq!(host.sample(then_process, [then_idle; 4]), Some(0.2), "{process} {idle}");
        }

        let mut host = Host::in_group("/app");
        host.group("app", "100000 100000", 1000);
        host.sample(0, [100; 4]);
        host.group("app", "100000 100000", 999);
        assert_eq!(host.sample(0, [200; 4]), None);
        host.group("app", "100000 100000", 1499);
        assert_eq!(host.sample(0, [300; 4]), Some(0.5));
    }

    #[test]
    fn where_no_idle_time_is_counted_all_cpus_are_available() {
        let cpus = available_parallelism().unwrap().get() as f64;
        let mut host = Host::new();
        assert_eq!(host.meter.sample(Some(SECOND), SECOND), None);
        assert_eq!(host.meter.sample(Some(SECOND * 2), SECOND * 4), Some(0.25 / cpus));

        // A sandbox without counters and without a list of allowed CPUs.
        let mut host = Host::new();
        host.write("proc/self/status", "Name:\tx\n");
        host.sample(0, [0; 4]);
        assert_eq!(host.sample(250, [0; 4]), Some(0.25 / cpus));
    }

    #[test]
    fn no_time_is_no_utilisation() {
        let mut host = Host::in_group("/app");
        host.group("app", "100000 100000", 1000);
        host.sample(0, [100; 4]);
        host.group("app", "100000 100000", 1500);
        assert_eq!(host.meter.sample(None, Duration::ZERO), None);
    }

    #[test]
    fn a_limit_that_means_nothing_is_no_quota() {
        let cases: [&[u8]; 12] = [
            b"",
            b"\n",
            b"max",
            b"max 100000\n",
            b"100000",
            b"100000 \n",
            b"100000 0\n",
            b"0 100000\n",
            b"-1 100000\n",
            b"1e5 100000\n",
            b"99999999999999999999 100000\n",
            b"\xff\xfe 100000\n",
        ];
        for max in cases {
            let mut host = Host::in_group("/app");
            host.write("sys/fs/cgroup/app/cpu.max", max);
            host.sample(0, [100; 4]);
            assert_eq!(host.sample(1000, [200; 4]), Some(0.2), "{}", String::from_utf8_lossy(max));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_and_is_over_when_it_is_over() {
        let cases: [(&str, &[u8]); 15] = [
            ("proc/stat", b""),
            ("proc/stat", b"\0\xff\n\n \n"),
            ("proc/stat", b"cpu  1 2 3 4 5\n"),
            ("proc/stat", b"cpu0\n"),
            ("proc/stat", b"cpu0 1 2 3 4\n"),
            ("proc/stat", b"cpu0 1 2 3 4 x\n"),
            ("proc/stat", b"cpu0 1 2 3 18446744073709551615 1\n"),
            ("proc/stat", b"cpu0 1 2 3 9446744073709551615 1\n"),
            ("proc/stat", b"cpu0 1 2 3 -4 5\n"),
            ("proc/self/status", b""),
            ("proc/self/status", b"Cpus_allowed_list:\n"),
            ("proc/self/status", b"Cpus_allowed_list:\t0-\n"),
            ("proc/self/status", b"Cpus_allowed_list:\t3-1\n"),
            ("sys/fs/cgroup/app/cpu.stat", b"user_usec 5\n"),
            ("sys/fs/cgroup/app/cpu.stat", b"usage_usec 99999999999999999999\n"),
        ];
        for (path, content) in cases {
            let mut host = Host::in_group("/app");
            host.group("app", "100000 100000", 1000);
            host.write("proc/stat", stat([100; 4]));
            let sound = fs::read(host.root.path().join(path)).unwrap();
            assert_eq!(host.meter.sample(None, SECOND), None);

            host.write(path, content);
            let shown = String::from_utf8_lossy(content);
            let problem = host.meter.counts(None).unwrap_err();
            assert!(problem.contains(path), "{shown}: {problem}");
            assert_eq!(host.meter.sample(None, SECOND), None, "{path}: {shown}");

            host.write(path, sound);
            assert_eq!(host.meter.sample(None, SECOND), None, "{path}: {shown}");
            host.group("app", "100000 100000", 1500);
            host.write("proc/stat", stat([200; 4]));
            assert_eq!(host.meter.sample(None, SECOND), Some(0.5), "{path}: {shown}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_logged_once() {
        let mut host = Host::new();
        host.write("proc/stat", "");
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            for _ in 0..3 {
                assert_eq!(host.meter.sample(Some(SECOND), SECOND), None);
            }
        });
        let said = log.lines();
        assert!(said.len() == 1 && said[0].contains("proc/stat: expected lines such as"), "{said:?}");
    }

    #[test]
    fn names_that_are_not_utf_8_do_not_matter() {
        let mut host = Host::in_group("/app");
        host.write("proc/self/status", b"Name:\t\xff\xfe\nCpus_allowed_list:\t0-3\n");
        host.write("proc/self/mountinfo", [b"9 1 0:1 / /mnt/\xff rw - tmpfs x rw\n", V2.as_bytes()].concat());
        host.group("app", "100000 100000", 1000);
        host.sample(0, [100; 4]);
        host.group("app", "100000 100000", 1500);
        assert_eq!(host.sample(0, [200; 4]), Some(0.5));
    }

    #[test]
    fn a_system_without_process_times_is_named() {
        let host = Host::new();
        assert_eq!(
            host.meter.counts(None).unwrap_err(),
            "this system does not report the CPU time of a process"
        );
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_gives_a_valid_utilization(
            stat in "(cpu[0-9]{0,2}( [0-9]{0,20}){0,6}\n){0,4}",
            status in "Cpus_allowed_list:\t[0-9,-]{0,12}\n",
            mountinfo in "(1 2 3 /[a./]{0,3} /[a/]{0,3} x - cgroup2 x\n){0,2}",
            own in "0::[a./]{0,6}\n",
            max in "(max|[0-9]{0,20}) [0-9]{0,20}",
            usage in "usage_usec [0-9]{0,20}",
            process: [Option<u64>; 2],
            elapsed: u64,
        ) {
            let mut host = Host::new();
            host.write("cpu.max", max);
            host.write("cpu.stat", usage);
            host.write("proc/stat", &stat);
            host.write("proc/self/status", status);
            host.write("proc/self/mountinfo", mountinfo);
            host.write("proc/self/cgroup", own);
            for process in process {
                let found = host.meter.sample(process.map(Duration::from_nanos), Duration::from_nanos(elapsed));
                assert!(found.is_none_or(|found| found.is_finite() && found >= 0.0), "{found:?}");
                host.write("proc/stat", stat.replace('1', "2"));
            }
        }
    }

    #[test]
    fn a_closure_is_a_meter() {
        let mut calls = 0.0;
        let mut meter = move |elapsed: Duration| {
            calls += 1.0;
            Some(calls / elapsed.as_secs_f64())
        };
        assert_eq!(CpuMeter::utilization(&mut meter, SECOND * 2), Some(0.5));
        assert_eq!(CpuMeter::utilization(&mut meter, SECOND * 2), Some(1.0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_is_measured() {
        let started = std::time::Instant::now();
        let mut meter = KernelCounters::new();
        assert_eq!(meter.utilization(Duration::ZERO), None);
        let burnt = process_time().unwrap() + Duration::from_millis(50);
        while process_time().unwrap() < burnt {}
        let found = meter.utilization(started.elapsed());
        assert!(found.is_some_and(|found| found > 0.0 && found.is_finite()), "{found:?}");
    }
}
