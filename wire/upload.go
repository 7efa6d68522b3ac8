package wire

import (
	"time"

	"berth"
)

// Upload is an archive that a tenant has stored. Its address names the content before
// compression.
type Upload struct {
	Address   berth.Address `json:"address"`
	Files     int           `json:"files" doc:"entries, folders and links included"`
	Bytes     int64         `json:"bytes" doc:"total size of all files, unpacked"`
	Stored    int64         `json:"stored_bytes,omitempty" doc:"compressed; absent for an older server's upload"`
	CreatedAt time.Time     `json:"created_at"`
}
