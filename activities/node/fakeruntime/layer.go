package fakeruntime

import "context"

// layer is the size of a writable layer.
type layer struct{ bytes, inodes int64 }

// SetLayer sets the result of LayerUse for a container. The fake cannot measure a layer, since its
// programs write all files to mounts.
func (f *Faults) SetLayer(name string, bytes, inodes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.layers[name] = layer{bytes, inodes}
}

// LayerUse returns the size set by SetLayer, or an empty layer.
func (e *execs) LayerUse(ctx context.Context, name string, _ int64) (bytes, inodes int64, err error) {
	if err := e.fake.allow(ctx, Call{Method: "LayerUse", Subject: name}); err != nil {
		return 0, 0, err
	}
	if _, err := e.fake.find(name); err != nil {
		return 0, 0, err
	}
	f := e.fake.Faults
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.layers[name].bytes, f.layers[name].inodes, nil
}
