package berth

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// StoredOutput is an output of a job that has been stored.
type StoredOutput struct {
	Name      string    `json:"name"`
	Attempt   int       `json:"attempt"`
	Member    int       `json:"member"`
	Address   Address   `json:"address" doc:"of its content: the same content has the same address"`
	Files     int       `json:"files" doc:"entries, folders and links included"`
	Bytes     int64     `json:"bytes" doc:"of all files together"`
	Stored    int64     `json:"stored_bytes" doc:"of the archive, compressed"`
	SHA256    string    `json:"sha256" doc:"of the archive as it is downloaded"`
	CreatedAt time.Time `json:"created_at"`
}

// OutputReport registers an output of one rank.
type OutputReport struct {
	AgentBoot string       `json:"agent_boot"`
	Epoch     int64        `json:"epoch"`
	Alloc     AllocationID `json:"alloc"`
	Job       JobID        `json:"job"`
	Attempt   int          `json:"attempt"`
	Rank      int          `json:"rank"`
	Output    StoredOutput `json:"output"`
}

// OutputSuffix ends the keys of outputs, and no key of a folder.
const OutputSuffix = ".tar.zst"

// OutputKey is the object that holds an output of one rank of one attempt.
func OutputKey(tenant TenantID, job JobID, attempt, rank int, name string) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "outputs", name+OutputSuffix)
}

// MaxOutputs is how many a job may have.
const MaxOutputs = 64

func (s JobSpec) validateOutputs(v *validation) {
	v.require(len(s.Outputs) <= MaxOutputs, "outputs", "too many", "at most "+strconv.Itoa(MaxOutputs))
	var names []string
	for i, o := range s.Outputs {
		field := "outputs[" + strconv.Itoa(i) + "]"
		v.require(isName(o.Name), field+".name", strconv.Quote(o.Name)+" is not a name", "1 to 63 of a-z, 0-9 and '-', not at either end")
		v.require(!slices.Contains(names, o.Name), field+".name", "is used twice", "each once")
		names = append(names, o.Name)
		ok := path.IsAbs(o.Path) && path.Clean(o.Path) == o.Path && o.Path != "/" && len(o.Path) <= 1024 && !strings.ContainsRune(o.Path, 0)
		for _, hidden := range []string{"/proc", "/sys", "/dev", "/run/secrets"} {
			ok = ok && o.Path != hidden && !strings.HasPrefix(o.Path, hidden+"/")
		}
		v.require(ok, field+".path", strconv.Quote(o.Path)+" cannot be an output", "a clean absolute path such as /out/model, not /, /proc, /sys, /dev or /run/secrets")
	}
}
