package wire

import "time"

// OnPremises is the provider of the machines that exist, in a list of PlanOffer.
const OnPremises = "on_premises"

// PlanOffer is a place where a job could run, with its price and its start: the machines that exist, or an offer of a
// cloud that the tenant's burst policy allows and on which the job fits.
type PlanOffer struct {
	Provider  string  `json:"provider" doc:"on_premises: the machines that exist; else a cloud provider"`
	Region    string  `json:"region,omitempty"`
	Zone      string  `json:"zone,omitempty" doc:"unset: the cloud chooses"`
	Machine   string  `json:"machine,omitempty" doc:"the best machine that exists, or the cloud's machine type"`
	Machines  int     `json:"machines,omitempty" doc:"number of machines that the job needs"`
	CPUs      float64 `json:"cpus,omitempty" doc:"CPUs of one machine"`
	MemoryMiB int64   `json:"memory_mib,omitempty" doc:"memory of one machine"`
	GPUs      int     `json:"gpus,omitempty" doc:"GPUs of one machine"`
	GPUType   string  `json:"gpu_type,omitempty"`
	Market    string  `json:"market,omitempty" doc:"on_demand or spot, for clouds"`
	// Price is for one machine. JobCost is for all machines and the run time of the job.
	Price   float64    `json:"price_per_hour,omitempty" doc:"price of one machine, in US dollars; absent: unknown"`
	JobCost float64    `json:"job_cost,omitempty" doc:"cost of the job, in US dollars; absent: unknown run time"`
	Starts  *time.Time `json:"starts,omitempty" doc:"planned; of a cloud, if launched now; absent: unknown"`
	Code    string     `json:"code,omitempty" doc:"why it is not used now, as in waiting.cloud; absent: it may be"`
	Note    string     `json:"note,omitempty"`
	Until   *time.Time `json:"until,omitempty" doc:"time of the next try of a closed offer; absent: unknown"`
	Source  string     `json:"source,omitempty" doc:"source of the price"`
	AsOf    *time.Time `json:"as_of,omitempty" doc:"date of the price"`
}
