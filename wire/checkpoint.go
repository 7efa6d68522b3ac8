package wire

// CheckpointFiles is the API's document of one member's part of a verified checkpoint.
type CheckpointFiles struct {
	Step    int64       `json:"step"`
	Attempt int         `json:"attempt" doc:"attempt that saved the step"`
	Member  int         `json:"member"`
	Members int         `json:"members" doc:"number of members with a part of the checkpoint"`
	Files   []SavedFile `json:"files"`
}

// SavedFile is a file of a checkpoint.
type SavedFile struct {
	Path   string `json:"path" doc:"path in the folder of the step"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Mode   uint32 `json:"mode" doc:"permission bits"`
}
