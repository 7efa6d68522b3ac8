package wire

import (
	"fmt"
	"strconv"
	"strings"

	"berth"
)

// HeaderWatermark carries a machine's highest Watermark on calls of the agent
// protocol, in the form of StoredWatermark.String. Servers without watermarks
// ignore it.
const HeaderWatermark = "Berth-Watermark"

// Watermark is a mark of the database's age, by which a restored backup is recognized. The
// control plane writes each watermark to the object store before the database grants it,
// and machines remember the highest one that they have seen. A database that does not
// know a watermark which it once granted has lost rows. The zero value is older than
// every watermark. See docs/adr/0033.
type Watermark struct {
	Number int64 `json:"number"` // grows by 1 with each grant, by far more after a restore
	// Branch is random per leader's term. It distinguishes two histories of the database
	// with the same number.
	Branch    string `json:"branch"`
	Signature string `json:"signature,omitempty"` // of the database, so that no machine can invent one
}

// IsZero reports whether w is the zero value, which stands for no watermark.
func (w Watermark) IsZero() bool { return w.Number == 0 }

// StoredWatermark is a watermark together with its cluster, since watermarks of two
// clusters cannot be compared.
type StoredWatermark struct {
	Cluster string `json:"cluster"`
	Watermark
}

// String returns the value of HeaderWatermark.
func (w StoredWatermark) String() string {
	return fmt.Sprintf("%s %d %s %s", w.Cluster, w.Number, w.Branch, w.Signature)
}

// ParseWatermark parses the text of StoredWatermark.String. It does not check the
// signature. The error has berth.CodeInvalid.
func ParseWatermark(s string) (StoredWatermark, error) {
	part := strings.Split(s, " ")
	if len(s) > 512 || len(part) != 4 {
		return StoredWatermark{}, berth.Errorf(berth.CodeInvalid,
			"watermark %.80q: allowed is CLUSTER NUMBER BRANCH SIGNATURE", s)
	}
	number, err := strconv.ParseInt(part[1], 10, 64)
	if err != nil || number < 1 {
		return StoredWatermark{}, berth.Errorf(berth.CodeInvalid,
			"watermark %.80q: its number must be 1 to %d", s, int64(1)<<62)
	}
	return StoredWatermark{part[0], Watermark{Number: number, Branch: part[2], Signature: part[3]}}, nil
}
