"""More training steps in the styles of public model repositories; each takes the class that it derives from."""

# ruff: noqa: UP008  graph mode needs the arguments of super(), and the repositories write them

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import functional as F
from wild_steps import grad_scale


def five_outputs(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense):
            super().__init__(network, optimizer, scale_sense)
            self.rate = Tensor(0.1, ms.float32)

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            norm = grads[0].sum() + grads[-1].sum()
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value(), self.rate, norm
    return Step


def two_losses(base):
    class Step(base):
        def construct(self, x, label):
            loss, penalty = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            seeds = (F.ones_like(loss) * scale, F.ones_like(penalty) * scale)
            grads = self.grad(self.network, self.weights)(x, label, seeds)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value(), penalty
    return Step


class TwoLosses(nn.Cell):
    """A network with its loss, and a penalty."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weight = network.trainable_params()[0]

    def construct(self, x, label):
        return self.network(x, label), ops.square(self.weight).mean()


def check_first(base):
    class Step(base):
        def construct(self, x, label):
            scale = self.scale_sense
            status, x = self.start_overflow_check(scale, x)
            loss = self.network(x, label)
            grads = self.grad(self.network, self.weights)(x, label, F.cast(F.ones_like(loss) * scale, F.dtype(loss)))
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(F.depend(status, loss), grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value()
    return Step


def check_after_the_gradients(base):
    class Step(base):
        def construct(self, x, label):
            loss = self.network(x, label)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * self.scale_sense)
            grads = self.hyper_map(F.partial(grad_scale, self.scale_sense), grads)
            status, grads = self.start_overflow_check(loss, grads)
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                self.optimizer(grads)
            return loss, cond
    return Step


def two_levels(base):
    class Parent(base):
        def __init__(self, network, optimizer, scale_sense):
            super(Parent, self).__init__(network, optimizer, scale_sense)
            self.factor = 0.5

        def gradients(self, x, label, loss, scale):
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            return self.hyper_map(F.partial(grad_scale, scale), grads)

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad_reducer(self.gradients(x, label, loss, scale))
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, scale.value()

    class Child(Parent):
        def __init__(self, network, optimizer, scale_sense):
            super(Child, self).__init__(network, optimizer, scale_sense)
            self.factor = 2.0

        def process_loss_scale(self, overflow):
            return super(Child, self).process_loss_scale(overflow)

        def construct(self, x, label):
            loss, cond, scale = super(Child, self).construct(x, label)
            return loss * self.factor, cond, scale
    return Child


def loss_alone_by_super(base):
    class Step(base):
        def construct(self, *inputs):
            loss, _, _ = super(Step, self).construct(*inputs)
            return loss
    return Step


def own_attributes(base):
    class Step(base):
        def __init__(self, network, optimizer, scale_sense):
            super().__init__(network, optimizer, scale_sense)
            self.network = network
            self.network.set_grad()
            self.network.add_flags(defer_inline=True)
            self.weights = optimizer.parameters
            self.optimizer = optimizer
            self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
            self.grad_reducer = F.identity
            self.hyper_map = ops.HyperMap()
            self.scale_sense = Parameter(Tensor(scale_sense.get_loss_scale(), ms.float32), name="scale_sense")
            self.loss_scaling_manager = scale_sense
            self.enable_tuple_broaden = True

        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            cond = self.get_overflow_status(status, grads)
            if not self.process_loss_scale(cond):
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, self.scale_sense.value()
    return Step


def counts_the_flag_itself(base):
    class Step(base):
        def construct(self, x, label):
            loss = self.network(x, label)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, F.ones_like(loss) * scale)
            grads = self.grad_reducer(self.hyper_map(F.partial(grad_scale, scale), grads))
            flag = self.reduce_sum(F.cast(self.get_overflow_status(status, grads), ms.float32))
            if self.is_distributed:
                flag = self.allreduce(flag)
            cond = self.less_equal(self.base, flag)
            overflow = cond
            if self.loss_scaling_manager:
                overflow = self.loss_scaling_manager(self.scale_sense, cond)
            if not overflow:
                loss = F.depend(loss, self.optimizer(grads))
            return loss, cond, self.scale_sense.value()
    return Step
