package wire

import (
	"net/http"
	"time"

	"berth/spec"
)

// HeaderFallback is set, to 1, in a call with which an agent moves an object through the server because the object
// store cannot be used by a signed address from this machine.
const HeaderFallback = "Berth-Fallback"

// SlugUploadGone is the code of the answer about an upload of parts that the object store does not have: it was
// completed or aborted.
const SlugUploadGone = "upload_gone"

// SlugObjectMissing is the code of the refusal of a checkpoint or an output whose objects are not in the object
// store as reported.
const SlugObjectMissing = "object_missing"

// ObjectAccess answers GET /agent/v1/object-access: which objects an agent moves straight to and from the object
// store. The zero value stands for none.
type ObjectAccess struct {
	Direct   bool  `json:"direct"`              // the server signs addresses
	MinBytes int64 `json:"min_bytes,omitempty"` // shorter objects go through the server
	MaxBytes int64 `json:"max_bytes,omitempty"` // longer objects too, unless they go by parts

	// Objects that are longer than PartsAbove are stored by parts of PartBytes, up to MaxInParts. PartBytes is 0 if
	// the server signs no parts.
	PartsAbove int64 `json:"parts_above,omitempty"`
	PartBytes  int64 `json:"part_bytes,omitempty"`
	MaxInParts int64 `json:"max_in_parts,omitempty"`

	// Chunks says that large files of checkpoints are stored by chunks, with or without signed addresses.
	Chunks bool `json:"chunks,omitempty"`
}

// Covers reports whether an object of this length is moved by signed addresses.
func (a ObjectAccess) Covers(bytes int64) bool {
	return a.Direct && bytes >= max(1, a.MinBytes) && (bytes <= a.MaxBytes || a.InParts(bytes))
}

// InParts reports whether an object of this length is stored by parts.
func (a ObjectAccess) InParts(bytes int64) bool {
	return a.Direct && a.PartBytes > 0 && bytes > a.PartsAbove && bytes <= a.MaxInParts
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

	// Exists says that the store may have the object, or the part, already. The server compares it with the
	// announced one, and signs nothing.
	Exists bool `json:"exists,omitempty"`

	// Of an object in parts alone. PartBytes is the length of each part but the last one, as in ObjectAccess, and
	// SHA256 is the hash of the concatenated hashes of the parts. A request without Upload begins the upload, one with
	// Part is for this part, and one without Part completes the object.
	PartBytes  int64  `json:"part_bytes,omitempty"`
	Upload     string `json:"upload,omitempty"`      // as the answer to the first request has it
	Part       int    `json:"part,omitempty"`        // from 1
	PartSHA256 string `json:"part_sha256,omitempty"` // of the part's content
}

// Found describes the object at the key of a request with Exists.
type Found string

// The values of Found. Servers of earlier versions send none.
const (
	FoundSame    Found = "same"
	FoundOther   Found = "other"   // another length or content
	FoundUnknown Found = "unknown" // the same length, and no hash of the content
	FoundNone    Found = "none"    // no object
)

// ObjectAddress is a signed request to the object store. It is a secret: it is valid for anyone until Until.
type ObjectAddress struct {
	URL    spec.Sensitive `json:"url,omitempty"` // "": the object goes through the server
	Header http.Header    `json:"header,omitempty"`
	Until  time.Time      `json:"until,omitzero"`
	Stored bool           `json:"stored,omitempty"` // the object, or the part, is in the store as announced
	Found  Found          `json:"found,omitempty"`  // of a request with Exists

	// Of the first request for an object in parts. Resumed says that the upload may have parts already.
	Upload  string `json:"upload,omitempty"`
	Resumed bool   `json:"resumed,omitempty"`
}
