package docker

import "sync"

// layerStatus is the part of a line of a pull's progress that is about one layer.
type layerStatus struct {
	ID     string
	Status string
	Detail struct{ Current, Total int64 } `json:"progressDetail"`
}

// pullMeter knows how far each pull under way has come. All methods may be called concurrently.
type pullMeter struct {
	mu    sync.Mutex
	pulls map[string]*pullShare // by canonical reference
}

// begin adds a pull. end removes it.
func (m *pullMeter) begin(ref string) (p *pullShare, end func()) {
	p = &pullShare{meter: m, layers: map[string]layer{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pulls == nil {
		m.pulls = map[string]*pullShare{}
	}
	m.pulls[ref] = p
	return p, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.pulls[ref] == p { // two logins may pull one image at a time
			delete(m.pulls, ref)
		}
	}
}

// pullShare is one pull. Its meter's mu guards the fields.
type pullShare struct {
	meter  *pullMeter
	layers map[string]layer
	most   int // the largest share reported so far: layers become known on the way
}

// layer is the completed share of one layer: the download counts for 70 of 100, and the
// extraction for the rest. bytes is 0 until the engine reports the layer's size.
type layer struct {
	bytes   int64
	percent int64
}

// shareOfDownload is the part of the download in a layer's 100.
const shareOfDownload = 70

// note takes one line of the engine's progress.
func (p *pullShare) note(s layerStatus) {
	if s.ID == "" {
		return
	}
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	l, known := p.layers[s.ID]
	part := func(of int64) int64 {
		if s.Detail.Total <= 0 {
			return 0
		}
		return min(of, max(0, s.Detail.Current*of/s.Detail.Total))
	}
	switch s.Status {
	case "Pulling fs layer", "Waiting":
	case "Downloading":
		l.bytes, l.percent = max(l.bytes, s.Detail.Total), max(l.percent, part(shareOfDownload))
	case "Verifying Checksum", "Download complete":
		l.percent = max(l.percent, shareOfDownload)
	case "Extracting":
		l.percent = max(l.percent, shareOfDownload+part(100-shareOfDownload))
	case "Pull complete", "Already exists":
		l.percent = 100
	default:
		if !known {
			return // a line about the whole image
		}
	}
	p.layers[s.ID] = l
}

// share returns the completed share in percent. A layer of unknown size counts as an average one.
func (p *pullShare) share() (percent int, known bool) {
	var bytes, sized int64
	for _, l := range p.layers {
		if l.bytes > 0 {
			bytes, sized = bytes+l.bytes, sized+1
		}
	}
	if sized == 0 {
		return 0, false
	}
	var done, all int64
	for _, l := range p.layers {
		if l.bytes == 0 {
			l.bytes = bytes / sized
		}
		done, all = done+l.bytes*l.percent/100, all+l.bytes
	}
	if all > 0 {
		p.most = max(p.most, int(done*100/all))
	}
	return p.most, true
}

// PullPercent returns the completed share of a pull under way.
func (m *images) PullPercent(ref string) (percent int, known bool) {
	m.meter.mu.Lock()
	defer m.meter.mu.Unlock()
	p := m.meter.pulls[canonical(ref)]
	if p == nil {
		return 0, false
	}
	return p.share()
}
