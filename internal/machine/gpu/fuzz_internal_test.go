package gpu

import (
	"strings"
	"testing"
	"time"
)

// FuzzKernelRecord: only a record of the driver with a number gives an XID, its address has one
// spelling, and the time since the boot is not negative.
func FuzzKernelRecord(f *testing.F) {
	for _, seed := range []string{
		"4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
		"4,1234,5678901,-;NVRM: Xid (PCI:00000000:3B:00.0): 48\n SUBSYSTEM=pci\n",
		"4,1,-5,-;NVRM: Xid (PCI:0000:3b:00): 79, x", "4,1,9223372036854775807,-;NVRM: Xid (PCI:0000:3b:00): 79",
		"6,1,1,-;user said NVRM: Xid (PCI:0000:3b:00): 79", "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 18446744073709551616",
		";", "4,1,1", "4,1,1,-;NVRM: Xid (PCI:): , ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		x, ok := parseXid(record)
		if !ok {
			return
		}
		_, text, _ := strings.Cut(string(record), ";")
		if !strings.HasPrefix(text, "NVRM: Xid (PCI:") {
			t.Errorf("%q, no message of the driver, gives XID %d", record, x.xid)
		}
		if x.since < 0 {
			t.Errorf("%q happened %s before the boot", record, -x.since)
		}
		if again := pciAddress(x.pci); again != x.pci {
			t.Errorf("%q has the address %q, whose spelling is %q", record, x.pci, again)
		}
		if strings.ContainsAny(x.words, "\n") || len(x.words) > len(record) {
			t.Errorf("%q has the words %q", record, x.words)
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(x.since)
		if at.Year() < 2026 {
			t.Errorf("%q happened at %s", record, at)
		}
	})
}
