package agent

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"berth"
)

// state is the agent's folder. One process has it at a time:
//
//	lock              held as long as the process lives
//	credential.json   the machine's name and token, mode 0600
//	key.pem           the machine's key, which renews the token, mode 0600; it never leaves the machine
//	ranks/            one folder for each member's container
//	kept/             folders of failed members that wait for their debug jobs; see keptFolders
//	cache/            code and inputs of jobs, by content; see cache
//	watermark.json    the highest sign of the database's age; see watermark
//	images.json       the images that containers here have used; see images
//	pulled.json       the images that this agent has pulled; see pulledImages
//	notice.json       the cloud's notices about this machine; see noticeBoard
//	fence/            of the deadman; see deadman.Dir
type state struct {
	dir  string
	lock *os.File
}

// credential is the machine's identity. The server issues it when the machine joins; from then on the
// agent chooses the tokens, and has the server accept them by the machine's key.
type credential struct {
	Machine berth.MachineID `json:"machine"`
	Token   string          `json:"token"`
	Cluster string          `json:"cluster"`

	Bound   bool      `json:"bound,omitempty"`   // the server knows the machine's key
	RenewAt time.Time `json:"renew_at,omitzero"` // by the clock of the host
	Number  int64     `json:"number,omitempty"`  // of the last renewal that was sent
	Next    string    `json:"next,omitempty"`    // token of that renewal until its answer; "": answered

	// Former is the token that was bound to the key, from a join with an earlier version. A database
	// that is restored from before the binding knows this token alone.
	Former string `json:"former,omitempty"`
}

// errInUse is the error of a state folder that a living process has locked.
var errInUse = errors.New("is in use by another agent")

// openState creates the folder if necessary and locks it: two agents with one identity would end
// each other's sessions. The lock lives until close, or until the process ends.
func openState(dir string) (*state, error) {
	// Other users of the host must not look inside: members' folders are open to any
	// user that their containers run as.
	if err := os.MkdirAll(filepath.Join(dir, "ranks"), 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close state folder to others: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("state folder %s %w", dir, errInUse)
		}
		return nil, fmt.Errorf("lock state folder %s: %w", dir, err)
	}
	return &state{dir, lock}, nil
}

// Close gives the folder back. It is unlocked first: a program that is being
// started at this moment has a copy of the descriptor, and so the lock, until it
// is executed.
func (s *state) Close() error {
	err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN)
	return errors.Join(err, s.lock.Close())
}

// credentialPath is the file that makes the folder this machine's.
func (s *state) credentialPath() string { return filepath.Join(s.dir, "credential.json") }

// errDamaged is the error of a file without a readable credential.
var errDamaged = errors.New("damaged")

// credential returns the stored credential; nil: the machine has not joined.
func (s *state) credential() (*credential, error) {
	b, err := os.ReadFile(s.credentialPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read credential: %w", err)
	}
	var c credential
	if err := json.Unmarshal(b, &c); err != nil || c.Token == "" {
		return nil, fmt.Errorf("credential.json in %s is %w (%v): remove it and join again", s.dir, errDamaged, err)
	}
	return &c, nil
}

// keyPath is the file of the machine's private key.
func (s *state) keyPath() string { return filepath.Join(s.dir, "key.pem") }

// key returns the machine's private key; nil: there is none yet.
func (s *state) key() (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(s.keyPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	damaged := func(why any) error {
		return fmt.Errorf("key.pem in %s is damaged (%v): put it back from a backup, or remove it and "+
			"credential.json and join again", s.dir, why)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != keyType {
		return nil, damaged("it has no block " + keyType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, damaged(err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, damaged("it is no Ed25519 key")
	}
	// A copy from a backup may be readable for others.
	if err := os.Chmod(s.keyPath(), 0o600); err != nil {
		return nil, fmt.Errorf("close the machine's key to others: %w", err)
	}
	return key, nil
}

// keyType is the type of the PEM block of a key.
const keyType = "PRIVATE KEY"

// makeKey replaces the machine's key by a new one. The key is on disk when makeKey returns: the server
// must never know a key that a crash of the host can take away.
func (s *state) makeKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make the machine's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the machine's key: %w", err)
	}
	if err := writeDurably(s.keyPath(), pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der})); err != nil {
		return nil, fmt.Errorf("store the machine's key: %w", err)
	}
	return key, nil
}

// storeCredential replaces the stored credential. It is on disk when storeCredential returns: after a
// crash of the host, an empty file would be left of a renewal.
func (s *state) storeCredential(c credential) error {
	b, err := json.Marshal(c)
	if err == nil {
		err = writeDurably(s.credentialPath(), b)
	}
	if err != nil {
		return fmt.Errorf("store credential: %w", err)
	}
	return nil
}

// writeJSON replaces a file at once, readable by its owner alone.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, b)
}

// writeDurably replaces a file, which is on disk when it returns.
func writeDurably(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writeFile replaces a file as a whole.
func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
