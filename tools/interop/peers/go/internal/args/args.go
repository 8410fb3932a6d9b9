// Package args reads the command line the way the interop programs of all languages do: `--flag=value`,
// `--flag value` and one dash instead of two. A flag that a program does not know is warned of and skipped with
// its value, because drivers pass the same line to programs of many ages.
package args

import (
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Parse sets the flags of set from line. Unknown flags get one line each on warnings.
func Parse(set *flag.FlagSet, line []string, warnings io.Writer) error {
	for len(line) > 0 {
		name, value, hasValue := strings.Cut(line[0], "=")
		line = line[1:]
		if !strings.HasPrefix(name, "-") {
			return fmt.Errorf("expected a flag, found %q", name)
		}
		name = strings.TrimPrefix(strings.TrimPrefix(name, "-"), "-")
		known := set.Lookup(name)
		if !hasValue && len(line) > 0 && takesValue(known, line[0]) {
			value, hasValue = line[0], true
			line = line[1:]
		}
		switch {
		case known == nil:
			fmt.Fprintf(warnings, "flag --%s is unknown and ignored\n", name)
			continue
		case !hasValue && isBool(known):
			value = "true"
		case !hasValue:
			return fmt.Errorf("flag --%s: expected a value, found none", name)
		}
		if err := set.Set(name, value); err != nil {
			return fmt.Errorf("flag --%s: %q is not a value of it: %w", name, value, err)
		}
	}
	return nil
}

// takesValue tells whether next belongs to the flag before it. A BOOL takes only what reads as one.
func takesValue(known *flag.Flag, next string) bool {
	switch {
	case known == nil:
		return !strings.HasPrefix(next, "-")
	case isBool(known):
		_, err := strconv.ParseBool(next)
		return err == nil
	default:
		return true
	}
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
