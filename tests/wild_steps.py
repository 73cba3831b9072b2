"""Training steps in the styles of public model repositories; each takes the class that it derives from."""

# ruff: noqa: UP008  graph mode needs the arguments of super(), and the repositories write them

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import get_group_size
from mindspore.ops import functional as F

grad_scale = ops.MultitypeFuncGraph("grad_scale")
reciprocal = ops.Reciprocal()
add_up = ops.MultitypeFuncGraph("add_up")
clear = ops.MultitypeFuncGraph("clear")
descend = ops.MultitypeFuncGraph("descend")
average = ops.MultitypeFuncGraph("average")


@grad_scale.register("Tensor", "Tensor")
def tensor_grad_scale(scale, grad):
    return grad * F.cast(reciprocal(scale), F.dtype(grad))


@add_up.register("Tensor", "Tensor")
def tensor_add_up(total, grad):
    return F.assign_add(total, grad)


@clear.register("Tensor")
def tensor_clear(total):
    return F.assign(total, F.zeros_like(total))


@average.register("Tensor", "Tensor", "Tensor")
def tensor_average(decay, shadow, weight):
    return F.assign(shadow, shadow * decay + weight * (1 - decay))


def optional_sens(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_update_cell=None):
            super().__init__(network, optimizer, scale_update_cell)
            self.cast = ops.Cast()

        def construct(self, x, label, sens=None):
            weights = self.weights
            loss = self.network(x, label)
            scaling_sens = self.scale_sense if sens is None else sens
            status, scaling_sens = self.start_overflow_check(loss, scaling_sens)
            grads = self.grad(self.network, weights)(x, label, self.cast(scaling_sens, ms.float32))
            grads = self.hyper_map(F.partial(grad_scale, scaling_sens), grads)
            grads = self.grad_reducer(grads)
            cond = self.get_overflow_status(status, grads)
            overflow = self.process_loss_scale(cond)
            if not overflow:
                self.optimizer(grads)
            return loss, cond, scaling_sens.value()
    return Step


def scale_of_its_own(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_update_cell=None):
            super(Step, self).__init__(network, optimizer, scale_update_cell)
            self.loss_scale = None
            self.loss_scaling_manager = scale_update_cell
            if scale_update_cell:
                self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), dtype=ms.float32),
                                            name="loss_scale")

        def construct(self, *inputs):
            loss = self.network(*inputs)
            scaling_sens = self.loss_scale
            status, scaling_sens = self.start_overflow_check(loss, scaling_sens)
            sens = F.fill(F.dtype(loss), F.shape(loss), 1.0) * scaling_sens
            grads = self.grad(self.network, self.weights)(*inputs, sens)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scaling_sens), grads))
            cond = self.get_overflow_status(status, grads)
            overflow = cond
            if self.loss_scaling_manager is not None:
                overflow = self.loss_scaling_manager(self.loss_scale, cond)
            if not overflow:
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, self.loss_scale.value()
    return Step


@descend.register("Tensor", "Tensor", "Tensor")
def tensor_descend(rate, weight, grad):
    return F.assign(weight, weight - rate * grad)


class GuardedDescent(nn.Optimizer):
    """An optimizer that is told of the overflow."""

    def __init__(self, params, rate):
        super().__init__(rate, params)
        self.map = ops.HyperMap()

    def construct(self, gradients, overflow):
        if not overflow:
            self.map(F.partial(descend, self.get_lr()), self.parameters, gradients)
        return overflow


def optimizer_takes_overflow(base):
    class Step(base):
        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(status, grads)
            overflow = self.process_loss_scale(cond)
            succ = self.optimizer(grads, overflow)
            return F.depend(loss, succ), cond, self.scale_sense.value()
    return Step


class Halving(nn.Cell):
    """A reducer."""

    def __init__(self):
        super().__init__()
        self.map = ops.HyperMap()

    def construct(self, grads):
        return self.map(F.partial(grad_scale, Tensor(2.0, ms.float32)), grads)


def own_reducer(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense):
            super().__init__(network, optimizer, scale_sense)
            self.grad_reducer = Halving()

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond
    return Step


def reducer_where_there_are_ranks(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense):
            super().__init__(network, optimizer, scale_sense)
            self.degree = 1
            if self.reducer_flag:
                self.degree = get_group_size()
                self.grad_reducer = nn.DistributedGradReducer(optimizer.parameters, False, self.degree)
            self.is_distributed = self.parallel_mode != ms.ParallelMode.STAND_ALONE

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            if self.reducer_flag:
                grads = self.grad_reducer(grads)
            grads = self.hyper_map(F.partial(grad_scale, scale * self.degree), grads)
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value()
    return Step


def clips_before_the_check(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense, clip_norm=0.5):
            super().__init__(network=network, optimizer=optimizer, scale_sense=scale_sense)
            self.clip_norm = clip_norm

        def construct(self, *inputs):
            loss = self.network(*inputs)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(*inputs, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            grads = ops.clip_by_global_norm(grads, self.clip_norm)
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value()
    return Step


def accumulates(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense, steps=2):
            super().__init__(network, optimizer, scale_sense)
            self.steps = steps
            self.totals = self.weights.clone(prefix="total", init="zeros")
            self.counted = Parameter(Tensor(0, ms.int32), name="counted", requires_grad=False)

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.hyper_map(F.partial(grad_scale, scale * self.steps), grads)
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.hyper_map(add_up, self.totals, grads))
                loss = F.depend(loss, F.assign_add(self.counted, Tensor(1, ms.int32)))
                if self.counted % self.steps == 0:
                    loss = F.depend(loss, self.optimizer(self.grad_reducer(self.totals)))
                    loss = F.depend(loss, self.hyper_map(clear, self.totals))
            return loss, cond, scale.value()
    return Step


def moving_average(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense, decay=0.9):
            super().__init__(network, optimizer, scale_sense)
            self.decay = Tensor(decay, ms.float32)
            self.live = ParameterTuple(list(network.get_parameters()))
            self.shadow = self.live.clone("shadow", init="same")

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
                loss = F.depend(loss, self.hyper_map(F.partial(average, self.decay), self.shadow, self.live))
            return loss
    return Step
