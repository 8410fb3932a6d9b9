package args

import (
	"flag"
	"strings"
	"testing"
)

func TestEveryFormOfAFlag(t *testing.T) {
	cases := []struct {
		line     string
		server   string
		qps      int
		secure   bool
		warnings int
	}{
		{line: "--server=a --qps=2 --secure_mode=true", server: "a", qps: 2, secure: true},
		{line: "-server a -qps 2 -secure_mode", server: "a", qps: 2, secure: true},
		{line: "--secure_mode true --server a", server: "a", secure: true},
		{line: "--secure_mode --server a", server: "a", secure: true},
		{line: "--secure_mode=False --server xds:///a=b", server: "xds:///a=b"},
		{line: "--what --server a", server: "a", warnings: 1},
		{line: "--what x --server a --ever=y", server: "a", warnings: 2},
		{line: "--qps -1", qps: -1},
	}
	for _, c := range cases {
		var server string
		var qps int
		var secure bool
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.StringVar(&server, "server", "", "")
		set.IntVar(&qps, "qps", 0, "")
		set.BoolVar(&secure, "secure_mode", false, "")
		var warnings strings.Builder
		if err := Parse(set, strings.Fields(c.line), &warnings); err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if server != c.server || qps != c.qps || secure != c.secure {
			t.Errorf("%s: server %q, qps %d, secure %v", c.line, server, qps, secure)
		}
		if got := strings.Count(warnings.String(), "\n"); got != c.warnings {
			t.Errorf("%s: %d warnings: %s", c.line, got, warnings.String())
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	for _, line := range []string{"server", "--qps", "--qps=many", "--secure_mode=maybe"} {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.Int("qps", 0, "")
		set.Bool("secure_mode", false, "")
		if err := Parse(set, strings.Fields(line), &strings.Builder{}); err == nil {
			t.Errorf("%s was taken", line)
		}
	}
}
