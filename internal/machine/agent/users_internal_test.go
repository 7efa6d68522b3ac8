package agent

import (
	"strings"
	"testing"
)

func TestAnAccountIsAddedOnce(t *testing.T) {
	t.Parallel()
	line := func(name string) string { return name + ":x:7000:7000:::" }
	const root = "root:x:0:0:root:/root:/bin/sh\n"
	for name, c := range map[string]struct{ given, want string }{
		"no file":        {"", root + "berth:x:7000:7000:::\n"},
		"other users":    {root + "www:x:33:33::/:\n", root + "www:x:33:33::/:\nberth:x:7000:7000:::\n"},
		"no newline":     {strings.TrimSpace(root), root + "berth:x:7000:7000:::\n"},
		"number known":   {root + "me:x:7000:1::/:\n", root + "me:x:7000:1::/:\n"},
		"group alone":    {root + "me:x:1:7000::/:\n", root + "me:x:1:7000::/:\nberth:x:7000:7000:::\n"},
		"name taken":     {root + "berth:x:1:1::/:\n", root + "berth:x:1:1::/:\nberth7000:x:7000:7000:::\n"},
		"not a passwd":   {"\x00\x01", "\x00\x01\nberth:x:7000:7000:::\n"},
		"longer numbers": {root + "me:x:70001:1::/:\n", root + "me:x:70001:1::/:\nberth:x:7000:7000:::\n"},
	} {
		given := []byte(c.given)
		if got := string(withAccount(given, 7000, line)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if string(given) != c.given {
			t.Errorf("%s: the cached lines have changed", name)
		}
	}
}

func TestOnlyKnownFormsNameAnOwner(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{"": "", "image": "", "7000:7001": "7000:7001"} {
		c := &claim{}
		c.User = user
		if got := c.userNumber(); got != want {
			t.Errorf("%q: user %q, want %q", user, got, want)
		}
	}
	for _, user := range []string{"tenant", "root", "7000:x", "-1:0"} {
		c := &claim{}
		c.User = user
		if _, err := c.owner(); err == nil {
			t.Errorf("%q is taken", user)
		}
	}
}
