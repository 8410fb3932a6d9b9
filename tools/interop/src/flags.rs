//! Flag parser of the interop programs, compatible with those of all peers. `--qps=10`, `--qps 10` and
//! `-qps=10` are equal, `--print_response` alone is true, and the last of repeated flags applies.
//!
//! A program reads the flags that it supports. All others are in [`Flags::unknown`], so that drivers may pass
//! flags of other clients. The word after a flag is its value only if the flag takes one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Command line, with marks for the flags read.
#[derive(Debug)]
pub struct Flags {
    args: Vec<Arg>,
}

#[derive(Debug)]
struct Arg {
    /// Name without dashes; `None` for a word that is not a flag.
    name: Option<String>,
    /// Text after `=`, or the word itself.
    value: Option<String>,
    taken: bool,
}

/// Invalid value of a flag.
#[derive(Debug, PartialEq, Eq)]
pub struct FlagError(String);

impl Flags {
    /// Parses the arguments of a program, without its name.
    pub fn of(args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { args: args.into_iter().map(|arg| Arg::of(arg.into())).collect() }
    }

    /// Returns a text flag.
    pub fn text(&mut self, name: &str, default: &str) -> Result<String, FlagError> {
        Ok(self.value(name, "a value")?.unwrap_or_else(|| default.to_owned()))
    }

    /// Returns a number that fits `T`.
    pub fn number<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, FlagError> {
        let expected = format!("a number ({})", std::any::type_name::<T>());
        match self.value(name, &expected)? {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| FlagError::of(name, &expected, &text)),
        }
    }

    /// Returns a boolean flag; false if absent.
    pub fn yes(&mut self, name: &str) -> Result<bool, FlagError> {
        let mut answer = false;
        for at in self.places(name) {
            answer = match &self.args[at].value {
                Some(text) => truth(text).ok_or_else(|| FlagError::of(name, "true or false", text))?,
                None => match self.next_word(at).and_then(truth) {
                    Some(told) => {
                        self.args[at + 1].taken = true;
                        told
                    }
                    None => true,
                },
            };
        }
        Ok(answer)
    }

    /// Returns a duration with a unit, as in Go: `20s`, `500ms`, `1.5m`.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>, FlagError> {
        const EXPECTED: &str = "a time like 20s or 500ms";
        let Some(text) = self.value(name, EXPECTED)? else { return Ok(None) };
        let time = duration(&text).ok_or_else(|| FlagError::of(name, EXPECTED, &text))?;
        Ok(Some(time))
    }

    /// Returns a flag parsed by `read`, whose error describes the expectation. An absent flag parses
    /// `default`.
    pub fn read<T>(
        &mut self,
        name: &str,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, FlagError> {
        let text = self.text(name, default)?;
        read(&text).map_err(|expected| FlagError::of(name, &expected, &text))
    }

    /// The same, with `None` for an absent flag.
    pub fn read_if_there<T>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, FlagError> {
        let Some(text) = self.value(name, "a value")? else { return Ok(None) };
        read(&text).map(Some).map_err(|expected| FlagError::of(name, &expected, &text))
    }

    /// Returns the arguments that were not read. A word after an unknown flag belongs to it. Call it last.
    pub fn unknown(&self) -> Vec<String> {
        let mut unknown: Vec<String> = Vec::new();
        let mut after_unknown_flag = false;
        for arg in &self.args {
            match (&arg.name, &arg.value) {
                _ if arg.taken => after_unknown_flag = false,
                (Some(name), value) => {
                    unknown.push(
                        value
                            .as_ref()
                            .map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")),
                    );
                    after_unknown_flag = value.is_none();
                }
                (None, word) => {
                    let word = word.as_deref().unwrap_or_default();
                    match unknown.last_mut().filter(|_| after_unknown_flag) {
                        Some(flag) => *flag = format!("{flag} {word}"),
                        None => unknown.push(word.to_owned()),
                    }
                    after_unknown_flag = false;
                }
            }
        }
        unknown
    }

    /// Warns on stderr about each ignored flag.
    pub fn warn_of_unknown(&self) {
        for flag in self.unknown() {
            eprintln!("warning: unknown flag {flag} is ignored");
        }
    }

    fn value(&mut self, name: &str, expected: &str) -> Result<Option<String>, FlagError> {
        let mut found = None;
        for at in self.places(name) {
            found = Some(if let Some(value) = &self.args[at].value {
                value.clone()
            } else {
                let word = self.next_word(at).ok_or_else(|| FlagError::missing(name, expected))?.to_owned();
                self.args[at + 1].taken = true;
                word
            });
        }
        Ok(found)
    }

    /// Returns the positions of a flag, and marks it as read.
    fn places(&mut self, name: &str) -> Vec<usize> {
        let is_it = |arg: &Arg| arg.name.as_deref() == Some(name);
        let places: Vec<usize> = (0..self.args.len()).filter(|&at| is_it(&self.args[at])).collect();
        for &at in &places {
            self.args[at].taken = true;
        }
        places
    }

    fn next_word(&self, at: usize) -> Option<&str> {
        let next = self.args.get(at + 1)?;
        next.value.as_deref().filter(|_| next.name.is_none())
    }
}

impl Arg {
    fn of(text: String) -> Self {
        let flag = text.strip_prefix("--").or_else(|| text.strip_prefix('-'));
        // `-5` is a number, not a flag.
        let Some(flag) = flag.filter(|flag| flag.starts_with(|first: char| first.is_ascii_alphabetic()))
        else {
            return Self { name: None, value: Some(text), taken: false };
        };
        match flag.split_once('=') {
            Some((name, value)) => {
                Self { name: Some(name.to_owned()), value: Some(value.to_owned()), taken: false }
            }
            None => Self { name: Some(flag.to_owned()), value: None, taken: false },
        }
    }
}

impl FlagError {
    fn of(name: &str, expected: &str, found: &str) -> Self {
        Self(format!("flag --{name}: expected {expected}, found {found:?}"))
    }

    fn missing(name: &str, expected: &str) -> Self {
        Self(format!("flag --{name}: expected {expected}, found nothing"))
    }
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FlagError {}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "t" | "y" => Some(true),
        "false" | "0" | "no" | "f" | "n" => Some(false),
        _ => None,
    }
}

fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Flags {
        Flags::of(line.split_whitespace())
    }

    #[test]
    fn a_flag_is_read_in_every_spelling() {
        let lines = ["--qps=7", "--qps 7", "-qps=7", "-qps 7", "--qps=3 --qps=7", "--print_response --qps=7"];
        for line in lines {
            assert_eq!(flags(line).number("qps", 1_u32), Ok(7), "{line}");
        }
        assert_eq!(flags("").number("qps", 1_u32), Ok(1));
        assert_eq!(flags("--server xds:///a").text("server", "b"), Ok("xds:///a".to_owned()));
        assert_eq!(flags("--metadata=").text("metadata", "b"), Ok(String::new()));
        assert_eq!(
            flags("--rpc_timeout=1.5s").duration("rpc_timeout"),
            Ok(Some(Duration::from_millis(1500)))
        );
    }

    #[test]
    fn a_bare_flag_is_yes() {
        for line in [
            "--wait",
            "-wait",
            "--wait=true",
            "--wait true",
            "--wait --qps=1",
            "--wait word",
            "--wait=False --wait",
        ] {
            assert_eq!(flags(line).yes("wait"), Ok(true), "{line}");
        }
        for line in ["", "--wait=false", "--wait false", "--wait --wait=0", "--waiting"] {
            assert_eq!(flags(line).yes("wait"), Ok(false), "{line}");
        }
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_flag() {
        let told = |error: FlagError| error.to_string();
        let number = flags("--qps=fast").number("qps", 1_u32).map_err(told);
        assert_eq!(number, Err("flag --qps: expected a number (u32), found \"fast\"".to_owned()));
        let number = flags("--qps -1").number("qps", 1_u32).map_err(told);
        assert_eq!(number, Err("flag --qps: expected a number (u32), found \"-1\"".to_owned()));
        let text = flags("--server --qps=1").text("server", "").map_err(told);
        assert_eq!(text, Err("flag --server: expected a value, found nothing".to_owned()));
        let yes = flags("--wait=maybe").yes("wait").map_err(told);
        assert_eq!(yes, Err("flag --wait: expected true or false, found \"maybe\"".to_owned()));
        for time in ["20", "s", "-1s", "20 years", "1e999s", "nans"] {
            assert!(Flags::of([format!("--t={time}")]).duration("t").is_err(), "{time}");
        }
    }

    #[test]
    fn unread_flags_are_unknown_with_their_values() {
        let mut flags = flags("word --wait --new=1 --qps 2 --newer 3 --newest --wait stray more");
        assert_eq!(flags.yes("wait"), Ok(true));
        assert_eq!(flags.number("qps", 1_u32), Ok(2));
        assert_eq!(flags.unknown(), ["word", "--new=1", "--newer 3", "--newest", "stray", "more"]);
    }
}
