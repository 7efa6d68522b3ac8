package wire

import (
	"net/http"
	"time"

	"berth/spec"
)

// HeaderFallback is set, to 1, in a call with which an agent moves an object through the server because the object
// store cannot be used by a signed address from this machine.
const HeaderFallback = "Berth-Fallback"

// SlugObjectMissing is the code of the refusal of a checkpoint or an output whose objects are not in the object
// store as reported.
const SlugObjectMissing = "object_missing"

// ObjectAccess answers GET /agent/v1/object-access: which objects an agent moves straight to and from the object
// store. The zero value stands for none.
type ObjectAccess struct {
	Direct   bool  `json:"direct"`              // the server signs addresses
	MinBytes int64 `json:"min_bytes,omitempty"` // shorter objects go through the server
	MaxBytes int64 `json:"max_bytes,omitempty"` // longer objects too
}

// Covers reports whether an object of this length is moved by a signed address.
func (a ObjectAccess) Covers(bytes int64) bool {
	return a.Direct && bytes >= max(1, a.MinBytes) && bytes <= a.MaxBytes
}

// AddressRequest asks for a signed address of one object, with POST /agent/v1/object-access.
type AddressRequest struct {
	AgentBoot string `json:"agent_boot"`
	Epoch     int64  `json:"epoch"`
	Key       string `json:"key"`
	Method    string `json:"method"` // GET or PUT

	// Of a PUT alone. Rest is the number of bytes as in HeaderRest.
	Bytes  int64  `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Rest   int64  `json:"rest,omitempty"`

	// Exists says that the store has refused an earlier address of this object, since the key exists. The
	// server compares the object in the store with Bytes and SHA256, and signs nothing.
	Exists bool `json:"exists,omitempty"`
}

// ObjectAddress is a signed request to the object store. It is a secret: it is valid for anyone until Until.
type ObjectAddress struct {
	URL    spec.Sensitive `json:"url,omitempty"` // "": the object goes through the server
	Header http.Header    `json:"header,omitempty"`
	Until  time.Time      `json:"until,omitzero"`
	Stored bool           `json:"stored,omitempty"` // of a request with Exists: the object is in the store as announced
}
