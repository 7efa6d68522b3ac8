package wire

import (
	"fmt"
	"path"
	"strings"

	"berth"
)

// Limits of chunks, the parts of checkpoint files that several checkpoints share
// (docs/adr/0098-unchanged-content-is-stored-once.md).
const (
	MaxChunkBytes   = 4 << 20 // of one chunk
	MaxPartChunks   = 1 << 16 // of one member's part of a checkpoint, counting repeated ones
	MaxAskedChunks  = 1000    // in one ChunkRequest that asks
	MaxChunksInCall = 64      // in any other one
)

// Chunk is a part of a file, named by its content.
type Chunk struct {
	SHA256 string `json:"sha256"` // in lower-case hexadecimal digits
	Bytes  int64  `json:"bytes"`
}

// Valid reports whether the hash has its one spelling and the length is within the limit.
func (c Chunk) Valid() bool {
	return len(c.SHA256) == 64 && strings.Trim(c.SHA256, "0123456789abcdef") == "" && c.Bytes >= 1 &&
		c.Bytes <= MaxChunkBytes
}

// ChunkSuffix is the suffix of the keys of chunks. No folder has this suffix.
const ChunkSuffix = ".chunk"

// ChunkCopy names a stored copy of a chunk: the attempt that stored it, and a random part, so that the removal of an
// old copy cannot remove a new one.
type ChunkCopy struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	SHA256  string
	Random  string
}

// Key returns the key of the copy in the object store.
func (c ChunkCopy) Key() string {
	return path.Join(ChunksPrefix(c.Tenant, c.Job, c.Attempt, c.Rank), c.Name())
}

// Name returns the last part of the key.
func (c ChunkCopy) Name() string { return c.SHA256 + "-" + c.Random + ChunkSuffix }

// ChunksPrefix returns the folder of the chunks that one member of one attempt has stored.
func ChunksPrefix(tenant berth.TenantID, job berth.JobID, attempt, rank int) string {
	return path.Join(berth.AttemptPrefix(tenant, job, attempt, rank), "chunks")
}

// ParseChunkName reads the hash and the random part of a copy from the last part of its key.
func ParseChunkName(name string) (sum, random string, ok bool) {
	name, ok = strings.CutSuffix(name, ChunkSuffix)
	sum, random, found := strings.Cut(name, "-")
	return sum, random, ok && found && random != "" && (Chunk{SHA256: sum, Bytes: 1}).Valid()
}

// ChunkWant is the question of a ChunkRequest.
type ChunkWant string

// The values of ChunkWant.
const (
	ChunkAsk    ChunkWant = "ask"    // which chunks the attempt may leave out
	ChunkStore  ChunkWant = "store"  // addresses to store chunks
	ChunkStored ChunkWant = "stored" // the chunks were stored by their addresses; the server compares them
	ChunkRead   ChunkWant = "read"   // addresses to read chunks of a checkpoint that the claim may restore
)

// ChunkRequest is a call about chunks of one member's part of a checkpoint, with POST /agent/v1/chunks. Job, Attempt,
// Rank and Step name the part. To read, the caller is a member that restores the part; else it is the member that saves
// it.
type ChunkRequest struct {
	AgentBoot string      `json:"agent_boot"`
	Epoch     int64       `json:"epoch"`
	Job       berth.JobID `json:"job"`
	Attempt   int         `json:"attempt"`
	Rank      int         `json:"rank"`
	Step      int64       `json:"step"`
	Want      ChunkWant   `json:"want"`
	Chunks    []Chunk     `json:"chunks"`         // each one once
	Rest      int64       `json:"rest,omitempty"` // to store: bytes of these and of all that follow
}

// ChunkAnswer answers a ChunkRequest, in the order of its chunks.
type ChunkAnswer struct {
	Chunks []ChunkAccess `json:"chunks"`
}

// ChunkAccess is the answer about one chunk.
type ChunkAccess struct {
	// Have says that the member need not send the chunk: it has sent it before, or it may restore a checkpoint with it.
	Have bool `json:"have,omitempty"`
	// Key, to store, is the key under which a chunk goes through the server.
	Key string `json:"key,omitempty"`
	// Address, to store and to read, has no URL if the chunk goes through the server.
	Address ObjectAddress `json:"address,omitzero"`
}

// ChunkPath returns the path, below /agent/v1/, at which a machine reads a chunk of a checkpoint through the server.
func ChunkPath(job berth.JobID, attempt, rank int, step int64, sum string) string {
	return fmt.Sprintf("chunks/%s/%d/%d/%d/%s", job, attempt, rank, step, sum)
}

// ChunkedCheckpoints is the path, below /agent/v1/, of reports about checkpoints with chunks. Servers of earlier
// versions do not know it, and so register no such checkpoint.
const ChunkedCheckpoints = "checkpoints/chunked"

// HeaderChunks is set, to 1, in a claim by an agent that restores files from chunks. Agents of earlier versions take
// such a checkpoint for a damaged one, so the server refuses their claims of a job that needs it.
const HeaderChunks = "Berth-Chunks"
