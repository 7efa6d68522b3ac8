package postgres

import (
	"errors"
	"strings"
	"testing"
)

// The sessions of a server that was killed end one by one and say so in the log
// of the next one, behind the reason why that did not start.
func TestAnOldServerIsKnownBehindWhatItsSessionsSay(t *testing.T) {
	t.Parallel()
	said := "FATAL:  pre-existing shared memory block (key 893059, ID 98328) is still in use\n" +
		strings.Repeat("FATAL:  terminating connection due to unexpected postmaster exit\n", 500)
	err := explain(errors.New("server ended while starting"), said)
	if !errors.Is(err, errOldServer) {
		t.Errorf("it is taken for %.200v", err)
	}
	if n := len(err.Error()); n > 2*maxSaid {
		t.Errorf("the error has %d bytes", n)
	}
}
