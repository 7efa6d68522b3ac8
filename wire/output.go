package wire

import (
	"time"

	"berth"
)

// StoredOutput is an output of a job in the object store. The address identifies the
// content, and the checksum the archive that contains it.
type StoredOutput struct {
	Name      string        `json:"name"`
	Attempt   int           `json:"attempt"`
	Member    int           `json:"member"`
	Address   berth.Address `json:"address" doc:"address of the content; equal content has one address"`
	Files     int           `json:"files" doc:"entries, folders and links included"`
	Bytes     int64         `json:"bytes" doc:"total size of all files"`
	Stored    int64         `json:"stored_bytes" doc:"size of the compressed archive"`
	SHA256    string        `json:"sha256" doc:"checksum of the archive as downloaded"`
	CreatedAt time.Time     `json:"created_at"`

	// Job and Step are set in the list of an array or a pipeline.
	Job  berth.JobID `json:"job,omitempty" doc:"element or step that has the output"`
	Step string      `json:"step,omitempty" doc:"path of that job, such as train.fit or train.sweep[3]"`
}
