package spec_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/spec"
)

func TestPortsAreNumbersAndRanges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][][2]int{
		`443`: {{443, 443}}, `"443"`: {{443, 443}}, `"443, 8000-8100"`: {{443, 443}, {8000, 8100}},
		`"1-65535"`: {{1, 65535}},
	} {
		var p spec.Ports
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := spec.ParsePorts(string(p))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{`0`, `65536`, `"9-1"`, `"a"`, `"1,"`, `-1`, `1.5`, `"1-2-3"`, `[443]`} {
		var p spec.Ports
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("%s is accepted as %q", text, p)
		}
	}
}

func TestDestinationsAreNetworksOfIPv4(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"11.0.0.0/24": "11.0.0.0/24", "11.0.0.7": "11.0.0.7/32", "0.0.0.0/0": "0.0.0.0/0",
		"11.0.0.7/24": "", "fd00::/8": "", "::1": "", "::ffff:11.0.0.0/120": "", "example.com": "", "": "", "11.0.0.0/33": "",
	} {
		p, err := spec.Destination{To: to}.Prefix()
		if (err == nil) != (want != "") || err == nil && p.String() != want {
			t.Errorf("%q: %v, %v; want %q", to, p, err, want)
		}
	}
}
